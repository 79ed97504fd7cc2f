// What the tests of position schemes share: a scheme from JSON and named values, what it adds to
// the scores, and attention through it.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn {

/// Queries, keys and values of one document, heads first.
struct Heads {
  Tensor q_HTD, k_HTD, v_HTD;
  int64_t length() const { return q_HTD.size(1); }
};

class Scheme {
 public:
  Scheme(const spec::Json& json, Values values, int64_t n_heads, int64_t head_dim, bool causal)
      : json_(json), values_(std::move(values)) {
    register_mechanisms();
    scope_.d_model = n_heads * head_dim;
    scope_.width = head_dim;
    scope_.n_heads = n_heads;
    scope_.causal = causal;
    scope_.places = {.embedding = true, .rotation = true, .score_bias = true};
  }
  spec::Scope& scope() { return scope_; }
  /// The mixer's own projections, for schemes that use them.
  std::function<Tensor(const Tensor&)> project_q, project_k;

  std::unique_ptr<Position> make(at::ScalarType type) const {
    return build_position(spec::read_part(spec::Slot::position, json_, scope_),
                          Builder(weights_from(values_, type), "", scope_));
  }

  ops::ScoreOptions options(int64_t length, double scale, at::ScalarType type) const {
    const Batch batch = Batch::of(
        std::vector<std::vector<int64_t>>{std::vector<int64_t>(static_cast<size_t>(length), 0)});
    Context context;
    context.batch = &batch;
    context.causal = scope_.causal;
    ScoreSite site{scope_.n_heads, scope_.width, length, scale, project_q, project_k};
    ops::ScoreOptions how;
    how.causal = scope_.causal;
    how.term = make(type)->score_term(site, context);
    how.scale = site.scale;
    return how;
  }

  /// The outputs of all heads, [H, T, Dv].
  Tensor attend(const Heads& in, double scale, at::ScalarType type) const {
    const auto tokens_first = [&](const Tensor& x) { return x.to(type).transpose(0, 1); };
    return ops::attention(tokens_first(in.q_HTD),
                          {{tokens_first(in.k_HTD), tokens_first(in.v_HTD), 0}}, 0,
                          options(in.length(), scale, type))
        .transpose(0, 1);
  }

  /// What the scores gain: [H, T, T].
  Tensor added(const Heads& in, double scale, at::ScalarType type) const {
    const ops::ScoreOptions how = options(in.length(), scale, type);
    const int64_t t = in.length(), h = scope_.n_heads;
    Tensor sum = at::zeros({h, t, t}, type);
    if (how.term.bias_HR.defined()) {
      const auto on = at::TensorOptions().dtype(at::kLong);
      const Tensor index =
          (at::arange(t, on).unsqueeze(0) - at::arange(t, on).unsqueeze(1) + how.term.zero)
              .clamp(0, how.term.bias_HR.size(1) - 1);
      sum = sum + how.term.bias_HR.to(type).index_select(1, index.flatten()).reshape({-1, t, t});
    }
    if (how.term.bias) {
      const Tensor q = in.q_HTD.to(type).unsqueeze(0), k = in.k_HTD.to(type).unsqueeze(0);
      sum = sum + how.term.bias({q, k, 0, 0, how.scale}, how.term.inputs).squeeze(0);
    }
    return sum;
  }

 private:
  spec::Json json_;
  Values values_;
  spec::Scope scope_;
};

/// softmax(scale q . k + bias) v of one head by its definition, one number at a time; a bias of
/// minus infinity hides a key. `value` is what key j gives query i.
inline Tensor attention_by_hand(const Tensor& q_TD,
                                const Tensor& k_TD,
                                double scale,
                                bool causal,
                                const std::function<double(int64_t i, int64_t j)>& bias,
                                const std::function<Tensor(int64_t i, int64_t j)>& value) {
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < q_TD.size(0); ++i) {
    double total = 0;
    Tensor sum = at::zeros_like(value(0, 0));
    for (int64_t j = 0; j < (causal ? i + 1 : k_TD.size(0)); ++j) {
      const double p = std::exp(scale * (q_TD[i] * k_TD[j]).sum().item<double>() + bias(i, j));
      total += p;
      sum = sum + p * value(i, j);
    }
    rows.push_back(sum / total);
  }
  return at::stack(rows);
}

/// gen() heads of one document, all distinct.
inline Heads gen_heads(int64_t h, int64_t t, int64_t d) {
  return {ops::gen({h, t, d}, 0.37, 0.11), ops::gen({h, t, d}, 0.53, 0.29),
          ops::gen({h, t, d}, 0.71, 0.05)};
}

/// Every head of attend() against attention_by_hand with bias(h, i, j).
inline void expect_by_hand(const Scheme& scheme,
                           const Heads& in,
                           double scale,
                           bool causal,
                           const std::function<double(int64_t h, int64_t i, int64_t j)>& bias,
                           double tolerance = 1e-12) {
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < in.q_HTD.size(0); ++h)
    heads.push_back(attention_by_hand(
        in.q_HTD[h], in.k_HTD[h], scale, causal,
        [&](int64_t i, int64_t j) { return bias(h, i, j); },
        [&](int64_t, int64_t j) { return in.v_HTD[h][j]; }));
  ops::expect_both([&](at::ScalarType type) { return scheme.attend(in, scale, type); },
                   at::stack(heads), tolerance);
}

}  // namespace tessera::nn
