#include "tessera/nn/mixer/attention/flash_gau.h"

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/gau_parts.h"
#include "tessera/ops/attention/unit_attention.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/weighted_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::nn {
namespace {

/// The inputs of one document, or of the tokens of a call.
struct Copies {
  Tensor q, k, q_linear, k_linear, v;  // [T, ..], or [B, T, ..]

  Copies narrow(int64_t begin, int64_t length) const {
    return map([&](const Tensor& x) { return x.narrow(0, begin, length); });
  }
  template <class F>
  Copies map(const F& f) const {
    return {f(q), f(k), f(q_linear), f(k_linear), f(v)};
  }
};

class FlashGau final : public Mixer {
 public:
  FlashGau(const FlashGauConfig& config, const Builder& builder)
      : config_(config),
        parts_(builder,
               config.d_hidden,
               config.d_key,
               config.position,
               config.child_scope(builder.scope(), "position")),
        out_(builder, "out") {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto [u_NE, v_NE, z_NS] = parts_.project(x_ND, context);
    const Copies all{parts_.copy(z_NS, 0, context), parts_.copy(z_NS, 1, context),
                     parts_.copy(z_NS, 2, context), parts_.copy(z_NS, 3, context), v_NE};
    const Batch& batch = *context.batch;
    const ops::ScoreOptions how = parts_.with_term(
        {.scale = 1 / static_cast<double>(config_.group), .causal = context.causal}, context);
    Tensor mixed_NE;
    if (const int64_t t = batch.equal_length();
        rows == nullptr && t > 0 && !ops::documents_apart(x_ND)) {
      const Copies folded = all.map([&](const Tensor& x) {
        return x.reshape({x.size(0) / t, t, x.size(1)}).to(ops::wide(x));
      });
      mixed_NE = whole(folded, how).reshape(v_NE.sizes()).to(v_NE.scalar_type());
    } else {
      const BySegment part(batch);
      const bool apart = ops::may_go_side_by_side(v_NE, how);
      mixed_NE = over_segments(batch, apart, [&](size_t i, const Segment& s) {
        const Copies own = all.map([&](const Tensor& x) { return part(x, i).to(ops::wide(x)); });
        Tensor y;
        if (rows != nullptr)
          y = grouped(own, how, s.start, (*rows)[i]);
        else if (!ops::documents_apart(x_ND))
          y = whole(own.map([](const Tensor& x) { return x.unsqueeze(0); }), how).squeeze(0);
        else
          y = context.causal ? grouped(own, how, 0, nullptr) : both_directions(own, how);
        return y.to(v_NE.scalar_type());
      });
    }
    return out_(u_NE * mixed_NE, context);
  }

 private:
  /// Inside a group; a position scheme may have changed the factor.
  ops::UnitScores inside(int64_t t, const Tensor& like, const ops::ScoreOptions& how) const {
    const double c = how.term ? 1 / how.scale : static_cast<double>(config_.group);
    return {at::full({t}, c, like.options()), ops::ScoreAct::relu2, how.causal};
  }

  /// What the position adds inside every group, q and k [B, groups c, S] of which t are tokens:
  /// [B or 1, groups, c, c]; undefined where there is nothing.
  static Tensor biases(
      const Tensor& q, const Tensor& k, int64_t t, int64_t c, const ops::ScoreOptions& how) {
    std::vector<Tensor> out;
    for (int64_t at = 0; at < t && how.term; at += c) {
      // places after the end have no entry in tables by place
      const int64_t n = std::min(c, t - at);
      const Tensor bias = GauParts::bias(how, q.narrow(1, at, n), k.narrow(1, at, n), at, at);
      out.push_back(at::constant_pad_nd(bias, {0, c - n, 0, c - n}));
    }
    return out.empty() ? Tensor() : at::stack(out, 1);
  }

  /// Whole documents, all groups at once: [B, T, E].
  Tensor whole(const Copies& in, const ops::ScoreOptions& how) const {
    const int64_t b = in.v.size(0), t = in.v.size(1), c = std::min(config_.group, t),
                  groups = (t + c - 1) / c;
    // keys and values of zero after the end add nothing
    const Copies g = in.map([&](const Tensor& x) {
      return at::constant_pad_nd(x, {0, 0, 0, groups * c - t}).reshape({b * groups, c, x.size(2)});
    });
    ops::UnitScores scores = inside(c, g.v, how);
    if (const Tensor bias = biases(in.q, in.k, t, c, how); bias.defined())
      scores.bias_TS = ops::expanded(bias, {b, groups, c, c}).reshape({b * groups, c, c});
    const Tensor quadratic = ops::unit_attention(g.q, g.k, g.v, scores);
    const Tensor gains = ops::product(g.k_linear.transpose(1, 2), g.v)
                             .reshape({b, groups, config_.d_key, config_.d_hidden});
    Tensor sums;
    if (how.causal) {
      // of the groups before each; not cumsum - own: that would let its rounding see the own group
      sums = at::constant_pad_nd(gains.cumsum(1).narrow(1, 0, groups - 1), {0, 0, 0, 0, 1, 0}) /
             static_cast<double>(config_.group);
    } else {
      const Tensor sum = ops::ordered_sum(gains, {1}, true);
      sums = ops::expanded(sum, gains.sizes()) / static_cast<double>(t);
    }
    const Tensor linear =
        ops::product(g.q_linear, sums.reshape({b * groups, config_.d_key, config_.d_hidden}));
    return (quadratic + linear).reshape({b, groups * c, config_.d_hidden}).narrow(1, 0, t);
  }

  /// Group after group from a row's state, or from nothing: tokens of a decoder.
  Tensor grouped(const Copies& in,
                 const ops::ScoreOptions& how,
                 int64_t start,
                 RowState* row) const {
    const int64_t t = in.v.size(0), c = config_.group, s = config_.d_key, e = config_.d_hidden;
    const auto held = [&](size_t i, int64_t length, int64_t width) {
      return row != nullptr ? row->fixed(i) : at::zeros({length, width}, in.v.options());
    };
    const int64_t room = row != nullptr ? c : std::min(c, t);
    Tensor keys = held(0, room, s), linear_keys = held(1, room, s), values = held(2, room, e),
           sum = held(3, s, e);
    std::vector<Tensor> out;
    for (int64_t i = 0; i < t;) {
      const int64_t at = (start + i) % c, n = std::min(c - at, t - i);
      const Copies piece = in.narrow(i, n);
      // the group so far: what is held, then the piece
      const auto joined = [&](const Tensor& before, const Tensor& now) {
        return at == 0 ? now : at::cat({before.narrow(0, 0, at), now});
      };
      const Tensor k = joined(keys, piece.k), k_linear = joined(linear_keys, piece.k_linear),
                   v = joined(values, piece.v);
      ops::UnitScores scores = inside(n, piece.q, how);
      scores.start = at;
      const Tensor bias =
          GauParts::bias(how, piece.q.unsqueeze(0), k.unsqueeze(0), start + i, start + i - at);
      if (bias.defined()) scores.bias_TS = bias.squeeze(0);
      out.push_back(quadratic(piece.q, k, v, scores) + ops::weighted_sum(piece.q_linear, sum));
      if (at + n == c) {
        sum = sum + ops::weighted_sum(k_linear.t(), v) / static_cast<double>(c);
      } else if (row != nullptr) {
        const auto padded = [&](const Tensor& x) {
          return at::constant_pad_nd(x, {0, 0, 0, c - x.size(0)});
        };
        keys = padded(k);
        linear_keys = padded(k_linear);
        values = padded(v);
      }
      i += n;
    }
    if (row != nullptr) {
      row->fixed(0) = keys;
      row->fixed(1) = linear_keys;
      row->fixed(2) = values;
      row->fixed(3) = sum;
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  static Tensor quadratic(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const ops::UnitScores& how) {
    if (ops::kernel_serves(ops::Op::unit_attention, q))
      return ops::unit_attention_kernel(q, {k}, {v}, how);
    return ops::unit_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), how).squeeze(0);
  }

  /// A document of an encoder by the kernels.
  Tensor both_directions(const Copies& in, const ops::ScoreOptions& how) const {
    const int64_t t = in.v.size(0), c = config_.group;
    const Tensor sum = ops::weighted_sum(in.k_linear.t(), in.v) / static_cast<double>(t);
    std::vector<Tensor> out;
    for (int64_t i = 0; i < t; i += c) {
      const Copies g = in.narrow(i, std::min(c, t - i));
      ops::UnitScores scores = inside(g.q.size(0), g.q, how);
      const Tensor bias = GauParts::bias(how, g.q.unsqueeze(0), g.k.unsqueeze(0), i, i);
      if (bias.defined()) scores.bias_TS = bias.squeeze(0);
      out.push_back(quadratic(g.q, g.k, g.v, scores) + ops::weighted_sum(g.q_linear, sum));
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  FlashGauConfig config_;
  GauParts parts_;
  Linear out_;
};

}  // namespace

std::unique_ptr<Mixer> build(const FlashGauConfig& config, const Builder& builder) {
  return std::make_unique<FlashGau>(config, builder);
}

}  // namespace tessera::nn
