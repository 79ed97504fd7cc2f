#include "tessera/nn/mixer/memorizing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/threads.h"
#include "tessera/nn/mixer/attend.h"
#include "tessera/nn/mixer/segment_memory.h"
#include "tessera/ops/attention_merge.h"
#include "tessera/ops/l2_norm.h"
#include "tessera/ops/listed_attention.h"
#include "tessera/ops/pointwise.h"

namespace tessera::nn {
namespace {

constexpr int64_t kQueryBlock = 64;  // queries whose scores are in memory at a time
constexpr double kNormEps = 1e-12;

using Parts = std::vector<ops::KeyValues>;

int64_t keys_in(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t n, const auto& p) { return n + p.k_SGD.size(0); });
}

/// For every query and head the k keys with the greatest products, as ascending numbers among all
/// of the parts: [T * H * k]. Of equal ones the earlier win. No gradient.
std::vector<int64_t> nearest(const Tensor& q_THD, const Parts& parts, int64_t k) {
  const at::NoGradGuard no_gradients;
  const int64_t t = q_THD.size(0), h = q_THD.size(1), n = keys_in(parts);
  const auto heads_first = [](const Tensor& x) { return x.detach().transpose(0, 1); };
  std::vector<Tensor> products;
  for (const ops::KeyValues& part : parts)
    products.push_back(ops::row_products(heads_first(q_THD), heads_first(part.k_SGD)));
  const Tensor scores =
      (products.size() == 1 ? products[0] : at::cat(products, -1)).to(at::kCPU, at::kDouble);
  const Tensor scores_HTN = scores.contiguous();
  const double* all = scores_HTN.const_data_ptr<double>();
  std::vector<int64_t> out(static_cast<size_t>(t * h * k));
  parallel_for(t * h, 8, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t row = begin; row < end; ++row) {
      const double* score = all + (row % h * t + row / h) * n;
      std::iota(order.begin(), order.end(), 0);
      const auto better = [&](int64_t a, int64_t b) {
        return score[a] != score[b] ? score[a] > score[b] : a < b;
      };
      if (k < n) std::nth_element(order.begin(), order.begin() + k, order.end(), better);
      std::sort(order.begin(), order.begin() + k);
      std::copy_n(order.begin(), k, out.begin() + row * k);
    }
  });
  return out;
}

/// What a term adds to the scores of q_THD at positions from `start` with the keys of `part`,
/// [H or 1, T, S].
Tensor added(const ops::ScoreTerm& term,
             const Tensor& q_THD,
             int64_t start,
             const ops::KeyValues& part) {
  const Tensor q = q_THD.transpose(0, 1).unsqueeze(0), k = part.k_SGD.transpose(0, 1).unsqueeze(0);
  const Tensor sum = ops::added_by_term(term, {q, k, start, part.first, 1});
  return sum.defined() ? sum.squeeze(0)
                       : at::zeros({1, q_THD.size(0), part.k_SGD.size(0)}, q_THD.options());
}

class Memorizing final : public Mixer {
 public:
  Memorizing(const MemorizingConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        scale_(builder.weight("scale")),
        gate_(builder.optional("gate")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    // lengths are free of each head's scale, which the queries carry into the scores
    const Tensor q_NHD = queries(x_ND), k_NHD = keys(x_ND), v_NHD = heads(v_(x_ND));
    const ops::ScoreOptions how = options(context);
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    const Tensor o_NHD = over_segments(*context.batch, [&](size_t i, const Segment& s) {
      const auto cut = [&](const Tensor& x) { return part(x, i); };
      RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
      return document(cut(q_NHD), {cut(k_NHD), cut(v_NHD), s.start}, row, how, dropout, s.begin);
    });
    return o_(o_NHD.reshape({x_ND.size(0), config_.n_heads * config_.head_dim}));
  }

 private:
  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }
  static Tensor unit(const Tensor& x) {
    return ops::l2_norm(x.to(ops::wide(x)), kNormEps).to(x.scalar_type());
  }
  Tensor queries(const Tensor& x) const { return unit(heads(q_(x))); }
  Tensor keys(const Tensor& x) const { return unit(heads(k_(x))); }
  Tensor scaled(const Tensor& q_THD) const {
    return q_THD * scale_->tensor().to(q_THD.scalar_type()).unsqueeze(-1);
  }

  ops::ScoreOptions options(Context& context) const {
    ops::ScoreOptions how;
    const int64_t longest = context.batch->longest();
    return with_term(std::move(how), *position_,
                     {.n_heads = config_.n_heads,
                      .head_dim = config_.head_dim,
                      .longest = config_.by_place() ? longest : std::min(longest, config_.reach()),
                      .project_q = [this](const Tensor& x) { return queries(x); },
                      .project_k = [this](const Tensor& x) { return keys(x); }},
                     context);
  }

  /// All that the queries of a call can read: what the row holds, as it is, and the call's own.
  Parts remembered(const ops::KeyValues& own, RowState* row) const {
    const int64_t start = own.first, t = own.k_SGD.size(0);
    if (row == nullptr) return in_pieces(own.k_SGD, own.v_SGD, start, config_.segment);
    TokenBuffer &held_k = row->tokens(0), &held_v = row->tokens(1);
    require(held_k.length() == start, "memorizing",
            "the state holds {} tokens, the call starts at {}", held_k.length(), start);
    const int64_t segment = start / config_.segment * config_.segment;
    const int64_t first = std::max<int64_t>(0, segment - std::max(config_.memory, config_.mem_len));
    // what the ring would lose to the call's own tokens is copied out
    const bool fits = !at::GradMode::is_enabled() && t == 1;
    Parts out;
    const auto hold = [&](int64_t from, int64_t to) {
      for (const ops::KeyValues& part : held_keys(held_k, held_v, from, to)) {
        const auto lasting = [&](const Tensor& x) { return fits ? x : x.clone(); };
        if (part.k_SGD.size(0) > 0)
          out.push_back({lasting(part.k_SGD), lasting(part.v_SGD), part.first});
      }
    };
    if (!fits) hold(first, start);
    held_k.append(own.k_SGD);
    held_v.append(own.v_SGD);
    if (fits)
      hold(first, start + t);
    else
      out.push_back(own);
    return out;
  }

  Tensor document(const Tensor& q_THD,
                  const ops::KeyValues& own,
                  RowState* row,
                  const ops::ScoreOptions& how,
                  const WeightDropout& dropout,
                  int64_t begin) const {
    const int64_t start = own.first;
    const Parts all = remembered(own, row);
    const std::vector<Stretch> segments = stretches(start, q_THD.size(0), config_.segment);
    const std::vector<Tensor> queries = by_stretch(q_THD.unsqueeze(0), segments);
    std::vector<Tensor> out;
    for (const Stretch& s : segments) {
      const Tensor q = queries[out.size()].squeeze(0);
      const Parts memory = still(cut(all, s.segment - config_.memory, s.segment));
      Parts local = still(cut(all, s.segment - config_.mem_len, s.segment));
      for (const ops::KeyValues& part : cut(all, s.segment, s.end)) local.push_back(part);
      if (memory.empty() || config_.combine == MemoryCombine::gate) {
        const Tensor near =
            ops::attention(scaled(q), local, s.begin, dropout.in(how, begin + s.begin - start));
        if (memory.empty()) {
          out.push_back(near);
          continue;
        }
        const Tensor g = at::sigmoid(gate_->tensor().to(q.scalar_type())).unsqueeze(-1);
        out.push_back(g * by_blocks(q, memory, {}, s.begin, how) + (1 - g) * near);
      } else {
        out.push_back(by_blocks(q, memory, local, s.begin, how));
      }
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// The same numbers, at which gradients stop.
  static Parts still(Parts parts) {
    for (ops::KeyValues& part : parts)
      part = {part.k_SGD.detach(), part.v_SGD.detach(), part.first};
    return parts;
  }

  /// One softmax over the nearest keys of the memory and, causally, those of `local`.
  Tensor by_blocks(const Tensor& q_THD,
                   const Parts& memory,
                   const Parts& local,
                   int64_t start,
                   const ops::ScoreOptions& how) const {
    std::vector<Tensor> out;
    for (int64_t i = 0; i < q_THD.size(0); i += kQueryBlock) {
      const Tensor q = q_THD.narrow(0, i, std::min(kQueryBlock, q_THD.size(0) - i));
      const int64_t k = std::min(config_.top_k, keys_in(memory));
      const std::vector<int64_t> best = nearest(q, memory, k);
      out.push_back(ops::use_kernels(q)
                        ? by_lists(scaled(q), memory, best, k, local, start + i, how)
                        : gathered(scaled(q), memory, best, k, local, start + i, how));
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// Consecutive parts in one: what a position adds may depend on all keys in between.
  static ops::KeyValues joined(const Parts& parts) {
    if (parts.size() == 1) return parts[0];
    std::vector<Tensor> k, v;
    for (const ops::KeyValues& part : parts) {
      k.push_back(part.k_SGD);
      v.push_back(part.v_SGD);
    }
    return {at::cat(k), at::cat(v), parts[0].first};
  }

  static Tensor by_lists(const Tensor& q_THD,
                         const Parts& memory,
                         const std::vector<int64_t>& best,
                         int64_t k,
                         const Parts& local,
                         int64_t start,
                         const ops::ScoreOptions& how) {
    const int64_t t = q_THD.size(0), h = q_THD.size(1);
    std::vector<ops::KeyMemory> sources;
    Tensor term_HTS;
    if (!local.empty())
      term_HTS = added(how.term, q_THD, start, joined(local))
                     .to(at::kFloat)
                     .expand({h, t, keys_in(local)});
    std::vector<Tensor> terms;  // of the local parts, [H, T, S]
    for (const ops::KeyValues& part : memory) sources.push_back({part.k_SGD, part.v_SGD});
    for (const ops::KeyValues& part : local) {
      sources.push_back({part.k_SGD, part.v_SGD});
      terms.push_back(
          term_HTS.narrow(2, part.first - local[0].first, part.k_SGD.size(0)).contiguous());
    }
    ops::KeyLists lists;
    lists.per_query = h;
    for (int64_t row = 0; row < t * h; ++row) {
      int64_t source = 0, before = 0;
      for (int64_t j = 0; j < k; ++j) {
        const int64_t key = best[static_cast<size_t>(row * k + j)];
        while (key - before >= memory[static_cast<size_t>(source)].k_SGD.size(0))
          before += memory[static_cast<size_t>(source++)].k_SGD.size(0);
        lists.add(source, key - before);
      }
      for (size_t p = 0; p < local.size(); ++p) {
        const int64_t s = local[p].k_SGD.size(0), query = start + row / h;
        const float* term = terms[p].const_data_ptr<float>() + (row % h * t + row / h) * s;
        for (int64_t j = 0; j < std::min(s, query + 1 - local[p].first); ++j)
          lists.add(static_cast<int64_t>(memory.size() + p), j, term[j]);
      }
      lists.end_list();
    }
    return ops::listed_attention(q_THD, sources, lists, how.scale).out;
  }

  static Tensor gathered(const Tensor& q_THD,
                         const Parts& memory,
                         const std::vector<int64_t>& best,
                         int64_t k,
                         const Parts& local,
                         int64_t start,
                         const ops::ScoreOptions& how) {
    const int64_t t = q_THD.size(0), h = q_THD.size(1), d = q_THD.size(2);
    // key n of head a is row n * H + a
    std::vector<int64_t> rows(best);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = rows[i] * h + static_cast<int64_t>(i) / k % h;
    const Tensor index = at::tensor(rows, at::kLong).to(q_THD.device());
    const auto pick = [&](const auto& side) {
      std::vector<Tensor> parts;
      for (const ops::KeyValues& part : memory) parts.push_back(side(part));
      return at::cat(parts).reshape({-1, d}).index_select(0, index).reshape({t, h, k, d});
    };
    const auto k_of = [](const ops::KeyValues& part) { return part.k_SGD; };
    const auto v_of = [](const ops::KeyValues& part) { return part.v_SGD; };
    const Tensor none = at::zeros({1, 1, 1, 1}, q_THD.options().dtype(ops::wide(q_THD)));
    const ops::Attended found =
        ops::biased_attention(q_THD.unsqueeze(2), pick(k_of), pick(v_of), none, how.scale);
    const Tensor o_THD = found.out.squeeze(2);
    if (local.empty()) return o_THD;

    const ops::KeyValues all = joined(local);
    const auto on = at::TensorOptions().dtype(at::kLong).device(q_THD.device());
    const int64_t s = all.k_SGD.size(0);
    const Tensor hidden = at::arange(all.first, all.first + s, on).unsqueeze(0) >
                          at::arange(start, start + t, on).unsqueeze(1);
    const Tensor term_HTS = added(how.term, q_THD, start, all)
                                .to(ops::wide(q_THD))
                                .expand({h, t, s})
                                .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    const ops::Attended near = ops::biased_attention(heads_first(q_THD), heads_first(all.k_SGD),
                                                     heads_first(all.v_SGD), term_HTS, how.scale);
    return ops::attention_merge(
               {o_THD, found.lse.squeeze(2)},
               {near.out.squeeze(0).transpose(0, 1), near.lse.squeeze(0).transpose(0, 1)})
        .out;
  }

  MemorizingConfig config_;
  std::string name_;
  Linear q_, k_, v_, o_;
  WeightPtr scale_, gate_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const MemorizingConfig& config, const Builder& builder) {
  return std::make_unique<Memorizing>(config, builder);
}

}  // namespace tessera::nn
