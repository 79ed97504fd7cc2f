#include "tessera/nn/mixer/attention/native_sparse_attention.h"

#include <cmath>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/position/relative.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/listed_term.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

constexpr int64_t kSparseQueryBlock = 64;  // queries whose lists are in memory at a time

/// phi of one of keys and values: makes a block one row.
class BlockCompressor {
 public:
  BlockCompressor(const NativeSparseAttentionConfig& config, const Builder& builder)
      : config_(config) {
    if (config.pool == BlockPool::mean) return;
    place_ = builder.weight("place");
    up_ = Linear(builder, "up");
    down_ = Linear(builder, "down");
  }

  /// The blocks that end with each stride of tokens [begin, begin + S), x_SGD, begin + block - 1
  /// being the end of the first: [n, G, D].
  Tensor operator()(const Tensor& x_SGD, const Context& context) const {
    const int64_t l = config_.block, g = config_.n_kv_heads, d = config_.head_dim;
    if (x_SGD.size(0) < l) return at::zeros({0, g, d}, x_SGD.options());
    const Tensor blocks = x_SGD.unfold(0, l, config_.stride);  // [n, G, D, l]
    if (config_.pool == BlockPool::mean) {
      // token after token: no bits depend on the number of blocks
      const Tensor wide_blocks = blocks.to(ops::wide(x_SGD));
      Tensor sum = wide_blocks.select(3, 0);
      for (int64_t j = 1; j < l; ++j) sum = sum + wide_blocks.select(3, j);
      return (sum / static_cast<double>(l)).to(x_SGD.scalar_type());
    }
    const Tensor placed =
        blocks.transpose(2, 3) +
        ops::spread(place_->tensor(context.products).to(x_SGD.device(), x_SGD.scalar_type()),
                    blocks.transpose(2, 3));
    const int64_t n = placed.size(0);
    const Tensor hidden =
        ops::activate(up_(placed.reshape({n * g, l * d}), context), ops::Activation::gelu);
    return down_(hidden, context).reshape({n, g, d});
  }

 private:
  NativeSparseAttentionConfig config_;
  WeightPtr place_;
  Linear up_, down_;
};

/// What the branches of one document read: raw tokens, and the blocks that end with each stride.
/// In parts, as they lie in a state.
struct Memory {
  std::vector<Tensor> k, v, k_blocks, v_blocks;
};

Tensor joined(const std::vector<Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

/// What the scores are made of by which queries select blocks; `added` may be undefined.
struct Selecting {
  Tensor q_THD, k_BGD;
  double scale;
  Tensor added;  // [H or 1, T, blocks]
};

/// Which blocks and tokens queries read.
class Lists {
 public:
  explicit Lists(const NativeSparseAttentionConfig& config) : config_(config) {}

  /// The complete blocks of queries start .. start + n, one list for all heads or one for each.
  ops::KeyLists blocks(int64_t start, int64_t n, bool by_head) const {
    ops::KeyLists lists;
    lists.per_query = by_head ? config_.n_heads : 1;
    for (int64_t t = 0; t < n; ++t)
      for (int64_t h = 0; h < lists.per_query; ++h) {
        for (int64_t b = 0; b < config_.visible_blocks(start + t); ++b) lists.add(0, b);
        lists.end_list();
      }
    return lists;
  }

  /// The tokens of the blocks that queries from `start` on select, one list for the heads of a
  /// group or one for each.
  ops::KeyLists tokens(const Selecting& by, int64_t start, bool by_head) const {
    const int64_t lists_of_group = by_head ? config_.n_heads / config_.n_kv_heads : 1;
    ops::KeyLists lists;
    lists.per_query = config_.n_kv_heads * lists_of_group;
    for_selected(by, start, [&](int64_t t, int64_t, const auto& chosen) {
      for (int64_t h = 0; h < lists_of_group; ++h) {
        for (const int64_t b : chosen)
          for (int64_t j = b * config_.select_block;
               j < std::min(start + t + 1, (b + 1) * config_.select_block); ++j)
            lists.add(0, j);
        lists.end_list();
      }
    });
    return lists;
  }

  /// f(query, kv head, blocks): what each query selects; no gradient.
  template <class F>
  void for_selected(const Selecting& by, int64_t start, const F& f) const {
    const at::NoGradGuard no_gradients;
    const int64_t t = by.q_THD.size(0), g = config_.n_kv_heads, per_group = config_.n_heads / g,
                  d = config_.head_dim, blocks = by.k_BGD.size(0);
    // scores of all blocks, [G][T, n, blocks]
    std::vector<Tensor> scores;
    for (int64_t kv = 0; kv < g && blocks > 0; ++kv) {
      const Tensor q = by.q_THD.detach().narrow(1, kv * per_group, per_group).reshape({-1, d});
      const Tensor k = by.k_BGD.detach().select(1, kv).contiguous();
      Tensor of_group = (ops::linear(q, ops::Weight::dense("blocks", k)).to(at::kDouble) * by.scale)
                            .reshape({t, per_group, blocks});
      if (by.added.defined()) {
        const Tensor own = by.added.size(0) == 1
                               ? by.added.detach()
                               : by.added.detach().narrow(0, kv * per_group, per_group);
        of_group = of_group + own.transpose(0, 1);
      }
      scores.push_back(of_group.to(at::kCPU).contiguous());
    }
    for (int64_t i = 0; i < t; ++i)
      for (int64_t kv = 0; kv < g; ++kv) {
        const int64_t seen = config_.visible_blocks(start + i);
        std::vector<double> weights(static_cast<size_t>(seen), 0.0);
        for (int64_t h = 0; h < per_group && seen > 0; ++h) {
          const double* row = scores[static_cast<size_t>(kv)].const_data_ptr<double>() +
                              (i * per_group + h) * blocks;
          const double top = *std::max_element(row, row + seen);
          double total = 0;
          for (int64_t b = 0; b < seen; ++b) total += std::exp(row[b] - top);
          for (int64_t b = 0; b < seen; ++b)
            weights[static_cast<size_t>(b)] += std::exp(row[b] - top) / total;
        }
        f(i, kv, config_.selected(start + i, weights));
      }
  }

 private:
  NativeSparseAttentionConfig config_;
};

class NativeSparseAttention final : public Mixer {
 public:
  NativeSparseAttention(const NativeSparseAttentionConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        gate_(builder, "gate"),
        o_(builder, "o"),
        compress_k_(config, builder.under("compress_k")),
        compress_v_(config, builder.under("compress_v")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        lists_(std::make_shared<const Lists>(config)) {
    if (config.shared_kv) return;
    k_window_ = Linear(builder, "k_window");
    v_window_ = Linear(builder, "v_window");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, g = config_.n_kv_heads,
                  d = config_.head_dim;
    const Tensor q = position_->rotate(q_(x_ND, context).reshape({n, h, d}), Side::query, context),
                 k = position_->rotate(k_(x_ND, context).reshape({n, g, d}), Side::key, context),
                 v = v_(x_ND, context).reshape({n, g, d});
    Tensor k_window = k, v_window = v;
    if (!config_.shared_kv) {
      k_window = position_->rotate(k_window_(x_ND, context).reshape({n, g, d}), Side::key, context);
      v_window = v_window_(x_ND, context).reshape({n, g, d});
    }
    const Tensor gates_NH3 =
        ops::activate(gate_(x_ND, context), ops::Activation::sigmoid).reshape({n, h, 3});
    const ops::ScoreOptions how = by_blocks(q, context),
                            of_window = options(config_.shared_kv ? k_ : k_window_, context);
    const BySegment part(*context.batch);
    const bool apart = ops::may_go_side_by_side(q, how) && ops::may_go_side_by_side(q, of_window);
    const auto of_segment = [&](size_t i, const Segment& s) {
      const auto cut = [&](const Tensor& x) { return part(x, i); };
      RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
      const int64_t start = row != nullptr ? s.start : 0;
      const Memory memory = remembered(cut(k), cut(v), start, row, context);
      const auto [compressed, selected] = sparse(cut(q), memory, how, start);
      const Tensor recent = windowed(cut(q), cut(k_window), cut(v_window), of_window, start, row);
      const auto gate = [&](int64_t branch) { return cut(gates_NH3).narrow(2, branch, 1); };
      return gate(0) * compressed + gate(1) * selected + gate(2) * recent;
    };
    const Tensor mixed = over_segments(*context.batch, apart, pairs_of(*context.batch), of_segment);
    return o_(mixed.reshape({n, h * d}), context);
  }

 private:
  /// Of the branches whose keys `k` projects.
  ops::ScoreOptions options(const Linear& k, Context& context) const {
    const auto heads = [this, &context](const Linear& linear) {
      return [this, &linear, &context](const Tensor& x) {
        return linear(x, context).reshape({x.size(0), -1, config_.head_dim});
      };
    };
    return with_term({.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim))}, *position_,
                     {.n_heads = config_.n_heads,
                      .head_dim = config_.head_dim,
                      .longest = context.batch->longest(),
                      .project_q = heads(q_),
                      .project_k = heads(k)},
                     context);
  }

  /// Of the branches that read blocks: what acts by distance is read from a table.
  ops::ScoreOptions by_blocks(const Tensor& q_NHD, Context& context) const {
    ops::ScoreOptions how = options(k_, context);
    if (!how.term || !config_.position.as<PositionConfig>().by_distance()) return how;
    ScoreSite site;
    site.longest = context.batch->longest();
    how.term = as_table(how.term, DistanceRange::of(site, context), q_NHD);
    return how;
  }

  /// Adds the call's tokens to what the row holds, and the blocks that they complete.
  Memory remembered(const Tensor& k,
                    const Tensor& v,
                    int64_t start,
                    RowState* row,
                    const Context& context) const {
    const int64_t t = k.size(0), stride = config_.stride, end = start + t;
    const int64_t first = start / stride, last = end / stride;  // blocks that end in the call
    const int64_t empty = std::min(last, config_.block / stride - 1);
    Memory memory{{k}, {v}, {}, {}};
    if (row != nullptr) {
      row->tokens(0).append(k);
      row->tokens(1).append(v);
      memory.k = row->tokens(0).spans(0, end);
      memory.v = row->tokens(1).spans(0, end);
    }
    const auto fresh = [&](const BlockCompressor& compress, size_t slot, const Tensor& own) {
      const int64_t none = std::max<int64_t>(0, empty - first);
      const Tensor begin_empty =
          at::zeros({none, config_.n_kv_heads, config_.head_dim}, k.options());
      if (first + none >= last) return begin_empty;
      const int64_t from = (first + none + 1) * stride - config_.block;
      const Tensor raw = row != nullptr ? row->tokens(slot).joined(from, last * stride)
                                        : own.narrow(0, from, last * stride - from);
      return at::cat({begin_empty, compress(raw, context)});
    };
    const Tensor k_fresh = fresh(compress_k_, 0, k), v_fresh = fresh(compress_v_, 1, v);
    // the empty ones are never read
    if (row != nullptr) {
      TokenBuffer &keys = row->tokens(config_.shared_kv ? 2 : 4),
                  &values = row->tokens(config_.shared_kv ? 3 : 5);
      keys.append(k_fresh);
      values.append(v_fresh);
      memory.k_blocks = keys.spans(empty, last);
      memory.v_blocks = values.spans(empty, last);
    } else {
      memory.k_blocks = {k_fresh.narrow(0, empty, last - empty)};
      memory.v_blocks = {v_fresh.narrow(0, empty, last - empty)};
    }
    return memory;
  }

  Tensor windowed(const Tensor& q,
                  const Tensor& k,
                  const Tensor& v,
                  ops::ScoreOptions options,
                  int64_t start,
                  RowState* row) const {
    options.window = config_.window;
    std::vector<ops::KeyValues> kv;
    if (row != nullptr) {
      // the shared ones hold the call's tokens already
      TokenBuffer &keys = row->tokens(config_.shared_kv ? 0 : 2),
                  &values = row->tokens(config_.shared_kv ? 1 : 3);
      const int64_t from = std::max<int64_t>(0, start - config_.window + 1);
      std::vector<Tensor> all_k = keys.spans(from, start), all_v = values.spans(from, start);
      all_k.push_back(k);
      all_v.push_back(v);
      kv.push_back({at::cat(all_k), at::cat(all_v), from});
      if (!config_.shared_kv) {
        keys.append(k);
        values.append(v);
      }
    } else {
      kv.push_back({k, v, start});
    }
    return ops::attention(q, kv, start, options);
  }

  // --- the branches that read blocks -----------------------------------------------------------

  /// By lists of keys: memory is linear in the tokens, gradients included.
  std::pair<Tensor, Tensor> sparse(const Tensor& q_THD,
                                   const Memory& memory,
                                   const ops::ScoreOptions& how,
                                   int64_t start) const {
    const ops::KeyPlaces of_blocks{config_.block - 1, config_.stride};
    const bool by_head = static_cast<bool>(how.term);
    // what is listed outlives the call, until its gradient has been formed
    const ops::ListsOf blocks = [lists = lists_, start, by_head](int64_t first, int64_t n) {
      return lists->blocks(start + first, n, by_head);
    };
    const ops::ListsOf tokens =
        [lists = lists_, q = q_THD.detach(), start, by_head, k = joined(memory.k_blocks).detach(),
         scale = how.scale, term = ops::detached(how.term), of_blocks](int64_t first, int64_t n) {
          const Tensor queries = q.narrow(0, first, n);
          return lists->tokens(
              {queries, k, scale, added(term, scale, queries, k, start + first, of_blocks)},
              start + first, by_head);
        };
    const auto attend = [&](const ops::KeyMemory& from, const ops::ListsOf& of,
                            const ops::KeyPlaces& places) {
      return ops::listed_attention(q_THD, {from}, of, how.scale, kSparseQueryBlock,
                                   ops::listed_term(how.term, how.scale, start, {places}));
    };
    return {attend({memory.k_blocks, memory.v_blocks}, blocks, of_blocks),
            attend({memory.k, memory.v}, tokens, {})};
  }

  /// What a term adds to the scores by which queries from `start` on select blocks, [H or 1, T,
  /// blocks]; undefined where it adds nothing.
  static Tensor added(const ops::ScoreTerm& term,
                      double scale,
                      const Tensor& q_THD,
                      const Tensor& k_BGD,
                      int64_t start,
                      const ops::KeyPlaces& places) {
    if (!term || k_BGD.size(0) == 0) return {};
    const at::NoGradGuard no_gradients;
    const Tensor
        q = q_THD.transpose(0, 1).unsqueeze(0),
        k = k_BGD.transpose(0, 1).repeat_interleave(q_THD.size(1) / k_BGD.size(1), 0).unsqueeze(0);
    return ops::added_by_term(term, {q, k, start, places.first, scale, 1, places.step}).squeeze(0);
  }

  NativeSparseAttentionConfig config_;
  Linear q_, k_, v_, k_window_, v_window_, gate_, o_;
  BlockCompressor compress_k_, compress_v_;
  std::unique_ptr<Position> position_;
  std::shared_ptr<const Lists> lists_;
};

}  // namespace

std::unique_ptr<Mixer> build(const NativeSparseAttentionConfig& config, const Builder& builder) {
  return std::make_unique<NativeSparseAttention>(config, builder);
}

}  // namespace tessera::nn
