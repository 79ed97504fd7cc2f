#include "tessera/nn/mixer/attention/multi_level_attention.h"

#include <cmath>
#include <limits>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/position/relative.h"
#include "tessera/ops/attention/listed_term.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

constexpr int64_t kLevelQueryBlock = 128;  // queries whose lists are in memory at a time

/// Where a memory's entries stand: `size` of one level, from number `first` on.
struct Stand {
  size_t level = 0;
  int64_t first = 0, size = 0;
};

/// Consecutive entries of one level, from entry `first` on.
struct Entries {
  size_t level = 0;
  int64_t first = 0;
  Tensor k_BSGD, v_BSGD;
  int64_t size() const { return k_BSGD.size(1); }
};

/// What a level pools keys, or values, with; what its kind does not have is null.
struct Pool {
  WeightPtr places;  // depthwise_conv [r, G, D]; mlp [r, D]
  Linear whole;      // conv
  Linear up, down;   // mlp
  Pool(const Builder& builder, LevelPool kind, const std::string& name) {
    if (kind == LevelPool::depthwise_conv) places = builder.weight(name);
    if (kind == LevelPool::conv) whole = Linear(builder, name);
    if (kind != LevelPool::mlp) return;
    places = builder.weight(name + ".place");
    up = Linear(builder, name + ".up");
    down = Linear(builder, name + ".down");
  }
};

class MultiLevelAttention final : public Mixer {
 public:
  MultiLevelAttention(const MultiLevelAttentionConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    for (size_t l = 1; l < config.levels(); ++l)
      for (const char* of : {"k", "v"})
        pools_.emplace_back(builder, config.pool, fmt::format("level{}.{}", l, of));
    if (config.combine == LevelCombine::gated) gate_ = Linear(builder, "gate");
    if (config.semantic > 0) semantic_ = builder.weight("semantic");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, g = config_.n_kv_heads,
                  d = config_.head_dim;
    const Tensor q_NHD =
        position_->rotate(q_(x_ND, context).reshape({n, h, d}), Side::query, context);
    const Tensor k_NGD = k_(x_ND, context).reshape({n, g, d}),
                 v_NGD = v_(x_ND, context).reshape({n, g, d});
    const Batch& batch = *context.batch;
    if (config_.grid)
      for (const Segment& s : batch.segments) check_length(s.length);
    const ops::ScoreOptions how = options(q_NHD, context);
    Tensor o_NLHD;
    if (const int64_t t = batch.equal_length();
        rows == nullptr && t > 0 && !ops::documents_apart(x_ND)) {
      const auto fold = [&](const Tensor& x) { return x.reshape({n / t, t, x.size(1), d}); };
      o_NLHD = document(fold(q_NHD), fold(k_NGD), fold(v_NGD), how, 0, nullptr, context);
    } else {
      const BySegment part(batch);
      const bool apart = ops::may_go_side_by_side(q_NHD, how);
      o_NLHD = over_segments(batch, apart, pairs_of(batch), [&](size_t i, const Segment& s) {
        const auto cut = [&](const Tensor& x) { return part(x, i).unsqueeze(0); };
        return document(cut(q_NHD), cut(k_NGD), cut(v_NGD), how, rows != nullptr ? s.start : 0,
                        rows != nullptr ? (*rows)[i] : nullptr, context)
            .squeeze(0);
      });
    }
    return o_(mixed(o_NLHD.reshape({n, -1, h, d}), x_ND, context).reshape({n, h * d}), context);
  }

 private:
  void check_length(int64_t length) const {
    const auto& [rows, columns, first] = config_.grid;
    if (length != first + rows * columns)
      fail(ErrorKind::input, "multi_level_attention",
           "a document of {} tokens; expected first + rows * columns = {} + {} * {} = {}", length,
           first, rows, columns, first + rows * columns);
  }

  /// The levels' outputs as one.
  Tensor mixed(const Tensor& o_NLHD, const Tensor& x_ND, const Context& context) const {
    if (!gate_.weight) return o_NLHD.squeeze(1);
    const Tensor gate = ops::activate(gate_(x_ND, context), ops::Activation::sigmoid)
                            .reshape({x_ND.size(0), -1, config_.n_heads, 1});
    Tensor sum;
    for (int64_t l = 0; l < o_NLHD.size(1); ++l) {
      const Tensor term = gate.select(1, l) * o_NLHD.select(1, l);
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }

  /// What acts by distance is read from a table.
  ops::ScoreOptions options(const Tensor& q_NHD, Context& context) const {
    const auto heads = [this, &context](const Linear& linear) {
      return [this, &linear, &context](const Tensor& x) {
        return linear(x, context).reshape({x.size(0), -1, config_.head_dim});
      };
    };
    const ScoreSite site{.n_heads = config_.n_heads,
                         .head_dim = config_.head_dim,
                         .longest = context.batch->longest(),
                         .project_q = heads(q_),
                         .project_k = heads(k_)};
    ops::ScoreOptions how = with_term(
        {.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)), .causal = context.causal},
        *position_, site, context);
    if (how.term && config_.position.as<PositionConfig>().by_distance())
      how.term = as_table(how.term, DistanceRange::of(site, context), q_NHD);
    return how;
  }

  // --- entries ---------------------------------------------------------------------------------

  /// Tokens of whole blocks of level `l` -> its entries.
  Tensor entries_of(const Tensor& x_BSGD, size_t l, size_t of, const Context& context) const {
    if (!config_.cascades()) return pooled(x_BSGD, l, of, context);
    Tensor x = x_BSGD;
    for (size_t i = 1; i <= l; ++i) x = pooled(x, i, of, context);
    return x;
  }

  /// x_BSGD cut for level `l`, into stretches or windows: [B, blocks, places, G, D], with `padding`
  /// where there is nothing.
  Tensor blocks(const Tensor& x_BSGD, size_t l, double padding) const {
    const int64_t r = config_.side_of(l);
    const auto whole = [r](int64_t n) { return (n + r - 1) / r; };
    if (!config_.grid) {
      const int64_t s = x_BSGD.size(1), n = whole(s);
      return at::constant_pad_nd(x_BSGD, {0, 0, 0, 0, 0, n * r - s}, padding).unflatten(1, {n, r});
    }
    // a grid of patches, or of windows one level below
    const int64_t below = config_.cascades() ? config_.ratios[l - 1] : 1,
                  rows = config_.grid.rows / below, columns = config_.grid.columns / below,
                  down = whole(rows), across = whole(columns);
    return at::constant_pad_nd(x_BSGD.unflatten(1, {rows, columns}),
                               {0, 0, 0, 0, 0, across * r - columns, 0, down * r - rows}, padding)
        .unflatten(2, {across, r})
        .unflatten(1, {down, r})
        .transpose(2, 3)
        .flatten(3, 4)
        .flatten(1, 2);
  }

  /// Whole blocks x_BSGD of level `l` (those at an end or edge perhaps smaller) -> [B, blocks, G,
  /// D]. Summed token after token, element by element, or by products of one block: no bits depend
  /// on the number of blocks.
  Tensor pooled(const Tensor& x_BSGD, size_t l, size_t of, const Context& context) const {
    const int64_t r = config_.pooled_of(l), s = x_BSGD.size(1);
    if (s > 0 && (config_.pool == LevelPool::conv || config_.pool == LevelPool::mlp))
      return projected(blocks(x_BSGD, l, 0), pools_[2 * (l - 1) + of], context);
    const bool max = config_.pool == LevelPool::max;
    const double padding = max ? -std::numeric_limits<double>::infinity() : 0;
    const Tensor x = blocks(x_BSGD.to(ops::wide(x_BSGD)), l, padding);
    if (max) return x.amax(2).to(x_BSGD.scalar_type());
    Tensor w;
    if (config_.pool == LevelPool::depthwise_conv)
      w = pools_[2 * (l - 1) + of].places->tensor(context.products).to(x.device(), x.scalar_type());
    Tensor sum;
    for (int64_t j = 0; j < r; ++j) {
      Tensor term = x.select(2, j);
      if (w.defined()) term = term * ops::spread(w.select(0, j), term);
      sum = sum.defined() ? sum + term : term;
    }
    if (!w.defined()) {
      std::vector<double> counts;
      for (int64_t b = 0; b < x.size(1); ++b)
        counts.push_back(static_cast<double>(config_.tokens_in(l, b, s)));
      sum = sum / at::tensor(counts, at::kDouble).to(x.options()).view({-1, 1, 1});
    }
    return sum.to(x_BSGD.scalar_type());
  }

  /// Blocks by the matrices of a pool: x_BNRGD -> [B, N, G, D].
  Tensor projected(const Tensor& x_BNRGD, const Pool& pool, const Context& context) const {
    const int64_t b = x_BNRGD.size(0), n = x_BNRGD.size(1), g = config_.n_kv_heads,
                  d = config_.head_dim;
    if (config_.pool == LevelPool::conv)
      return pool.whole(x_BNRGD.reshape({b * n, -1}), context).reshape({b, n, g, d});
    const Tensor placed =
        x_BNRGD.transpose(2, 3) +
        ops::spread(
            pool.places->tensor(context.products).to(x_BNRGD.device(), x_BNRGD.scalar_type()),
            {b, n, g, x_BNRGD.size(2), d});
    const Tensor hidden =
        ops::activate(pool.up(placed.reshape({b * n * g, -1}), context), ops::Activation::gelu);
    return pool.down(hidden, context).reshape({b, n, g, d});
  }

  /// Keys at these positions, the same for every sequence.
  Tensor rotated(const Tensor& x_BSGD, const Tensor& positions_S, Context& context) const {
    if (x_BSGD.size(1) == 0) return x_BSGD;
    Batch batch;
    const int64_t b = x_BSGD.size(0), s = x_BSGD.size(1);
    batch.segments = {{0, 0, b * s, 0}};
    batch.positions_N = positions_S.repeat({b});
    Context inner = context.over(batch);
    return position_->rotate(x_BSGD.flatten(0, 1), Side::key, inner).reshape(x_BSGD.sizes());
  }

  /// Entries [first, first + blocks) of level `l` from the raw keys and values of their tokens.
  Entries made(const Tensor& k, const Tensor& v, size_t l, int64_t first, Context& context) const {
    const int64_t r = config_.ratios[l], end = first * r + k.size(1);
    const Tensor keys = entries_of(k, l, 0, context);
    const Tensor last =
        at::clamp_max((at::arange(first, first + keys.size(1), at::kLong) + 1) * r - 1, end - 1);
    return {l, first, rotated(keys, last.to(k.device()), context), entries_of(v, l, 1, context)};
  }

  /// The level of summaries, from the keys and values of all tokens of a document.
  Entries summaries(const Tensor& k_BSGD, const Tensor& v_BSGD) const {
    const int64_t tokens = k_BSGD.size(1), d = config_.head_dim;
    const Tensor u_NGD = semantic_->tensor().to(k_BSGD.device(), k_BSGD.scalar_type());
    const ops::ListsOf all = [tokens](int64_t, int64_t n) {
      ops::KeyLists out;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < tokens; ++j) out.add(0, j);
        out.end_list();
      }
      return out;
    };
    std::vector<Tensor> k, v;
    for (int64_t b = 0; b < k_BSGD.size(0); ++b) {
      const double scale = 1 / std::sqrt(static_cast<double>(d));
      const auto mean_of = [&](const Tensor& x_SGD) {
        return ops::listed_attention(u_NGD, {{k_BSGD[b], x_SGD}}, all, scale, kLevelQueryBlock);
      };
      k.push_back(mean_of(k_BSGD[b]));
      v.push_back(mean_of(v_BSGD[b]));
    }
    return {config_.levels(), 0, at::stack(k), at::stack(v)};
  }

  // --- a document, or what a call adds to it ---------------------------------------------------

  Tensor document(const Tensor& q_BTHD,
                  const Tensor& k_BTGD,
                  const Tensor& v_BTGD,
                  const ops::ScoreOptions& how,
                  int64_t start,
                  RowState* row,
                  Context& context) const {
    const int64_t t = q_BTHD.size(1), end = start + t;
    const std::vector<LevelRange> oldest =
        context.causal ? config_.causal_ranges(start) : config_.open_ranges(0, end);
    // raw tokens: those that the first query sees, and the open blocks
    int64_t base = start;
    Tensor k = k_BTGD, v = v_BTGD;
    if (row != nullptr) {
      base = std::min(oldest[0].begin, start / config_.ratios.back() * config_.ratios.back());
      k = joined(row->tokens(0), base, start, k);
      v = joined(row->tokens(1), base, start, v);
    }
    const Tensor raw_positions =
        at::arange(base, end, at::TensorOptions(at::kLong).device(k.device()));
    std::vector<Entries> memory{{0, base, rotated(k, raw_positions, context), v}};
    for (size_t l = 1; l < config_.levels(); ++l) {
      const int64_t r = config_.ratios[l], first = start / r;
      const int64_t stop = context.causal ? end / r * r : end;
      const int64_t alone = config_.grid.first, from = first * r - base + alone,
                    length = std::max<int64_t>(0, stop - first * r - alone);
      const Entries fresh =
          made(k.narrow(1, from, length), v.narrow(1, from, length), l, first, context);
      if (row == nullptr)
        memory.push_back(fresh);
      else
        hold(fresh, oldest[l].begin / r, *row, memory);
    }
    if (config_.semantic > 0) {
      const int64_t alone = config_.grid.first;
      memory.push_back(summaries(k.narrow(1, alone, t - alone), v.narrow(1, alone, t - alone)));
    }
    if (row != nullptr) {
      row->tokens(0).append(k_BTGD.squeeze(0));
      row->tokens(1).append(v_BTGD.squeeze(0));
    }
    return attend(q_BTHD, memory, how, start, end);
  }

  /// What a buffer holds of positions [from, to), and then x.
  static Tensor joined(const TokenBuffer& buffer, int64_t from, int64_t to, const Tensor& x_BTGD) {
    if (from == to) return x_BTGD;
    std::vector<Tensor> parts;
    for (const Tensor& span : buffer.spans(from, to)) parts.push_back(span.unsqueeze(0));
    parts.push_back(x_BTGD);
    return at::cat(parts, 1);
  }

  /// Appends new entries to the row and lists what is held from entry `from` on.
  void hold(const Entries& fresh, int64_t from, RowState& row, std::vector<Entries>& memory) const {
    TokenBuffer &keys = row.tokens(2 * fresh.level), &values = row.tokens(2 * fresh.level + 1);
    const auto list = [&](int64_t to) {
      const auto k = keys.spans(from, to), v = values.spans(from, to);
      int64_t first = from;
      for (size_t i = 0; i < k.size(); ++i) {
        memory.push_back({fresh.level, first, k[i].unsqueeze(0), v[i].unsqueeze(0)});
        first += k[i].size(0);
      }
    };
    const auto append = [&] {
      keys.append(fresh.k_BSGD.squeeze(0));
      values.append(fresh.v_BSGD.squeeze(0));
    };
    // a ring may not hold both the oldest entry that is read and all new ones
    const bool whole = fresh.level + 1 == config_.levels();
    if (whole) {
      append();
      list(keys.length());
    } else {
      std::vector<Tensor> old_k, old_v;
      for (const Tensor& span : keys.spans(from, fresh.first)) old_k.push_back(span.clone());
      for (const Tensor& span : values.spans(from, fresh.first)) old_v.push_back(span.clone());
      old_k.push_back(fresh.k_BSGD.squeeze(0));
      old_v.push_back(fresh.v_BSGD.squeeze(0));
      memory.push_back(
          {fresh.level, from, at::cat(old_k).unsqueeze(0), at::cat(old_v).unsqueeze(0)});
      append();
    }
  }

  // --- attention -------------------------------------------------------------------------------

  Tensor attend(const Tensor& q_BTHD,
                const std::vector<Entries>& memory,
                const ops::ScoreOptions& how,
                int64_t start,
                int64_t end) const {
    std::vector<Tensor> out;
    for (int64_t b = 0; b < q_BTHD.size(0); ++b) {
      std::vector<Tensor> by_level;
      for (const std::vector<Entries>& together : softmaxes(memory))
        by_level.push_back(together.empty() ? at::zeros_like(q_BTHD[b])
                                            : by_lists(q_BTHD[b], b, together, how, start, end));
      out.push_back(at::stack(by_level, 1));
    }
    return at::stack(out);
  }

  /// The entries that share a softmax.
  std::vector<std::vector<Entries>> softmaxes(const std::vector<Entries>& memory) const {
    if (config_.combine == LevelCombine::softmax) return {memory};
    std::vector<std::vector<Entries>> out(config_.all_levels());
    for (const Entries& e : memory) out[e.level].push_back(e);
    return out;
  }

  /// Sequence number b. Memory is linear in the entries, gradients included.
  Tensor by_lists(const Tensor& q_THD,
                  int64_t b,
                  const std::vector<Entries>& memory,
                  const ops::ScoreOptions& how,
                  int64_t start,
                  int64_t end) const {
    std::vector<ops::KeyMemory> sources;
    for (const Entries& e : memory) sources.push_back({e.k_BSGD[b], e.v_BSGD[b]});
    // what is listed outlives the call, until its gradient has been formed
    const ops::ListsOf of = [config = config_, at = stands(memory), start, end, causal = how.causal,
                             by_head = static_cast<bool>(how.term)](int64_t first, int64_t n) {
      return lists(config, at, {start + first, start + first + n}, end, causal, by_head);
    };
    return ops::listed_attention(q_THD, sources, of, how.scale, kLevelQueryBlock,
                                 ops::listed_term(how.term, how.scale, start, places(memory, end)));
  }

  /// Where entries stand: at the last token of their block, in a document of `length` tokens so
  /// far.
  std::vector<ops::KeyPlaces> places(const std::vector<Entries>& memory, int64_t length) const {
    std::vector<ops::KeyPlaces> out;
    for (const Entries& e : memory) {
      // summaries, which have no place, go without positions
      const int64_t r = e.level < config_.levels() ? config_.ratios[e.level] : 1;
      // the last block of an encoder may be shorter
      out.push_back({(e.first + 1) * r - 1, r, length - 1});
    }
    return out;
  }

  static std::vector<Stand> stands(const std::vector<Entries>& memory) {
    std::vector<Stand> out;
    for (const Entries& e : memory) out.push_back({e.level, e.first, e.size()});
    return out;
  }

  /// What the queries at these positions read, the oldest first; one list for all heads or one for
  /// each.
  static ops::KeyLists lists(const MultiLevelAttentionConfig& config,
                             const std::vector<Stand>& memory,
                             LevelRange queries,
                             int64_t length,
                             bool causal,
                             bool by_head) {
    ops::KeyLists out;
    out.per_query = by_head ? config.n_heads : 1;
    std::vector<std::vector<double>> gains(memory.size());
    for (size_t m = 0; m < memory.size(); ++m)
      for (int64_t b = 0; b < memory[m].size; ++b)
        gains[m].push_back(config.gain(memory[m].level, memory[m].first + b, length));
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      const std::vector<std::vector<LevelRange>> read = config.read(i, length, causal);
      for (int64_t h = 0; h < out.per_query; ++h) {
        for (size_t level = read.size(); level-- > 0;)
          for (size_t m = 0; m < memory.size(); ++m) {
            if (memory[m].level != level) continue;
            const int64_t first = memory[m].first, size = memory[m].size;
            for (const auto& [from, to] : read[level])
              for (int64_t b = std::max(from, first); b < std::min(to, first + size); ++b)
                out.add(static_cast<int64_t>(m), b - first,
                        gains[m][static_cast<size_t>(b - first)]);
          }
        out.end_list();
      }
    }
    return out;
  }

  MultiLevelAttentionConfig config_;
  Linear q_, k_, v_, o_;
  std::unique_ptr<Position> position_;
  std::vector<Pool> pools_;  // level1.k, level1.v, level2.k ..
  Linear gate_;
  WeightPtr semantic_;  // [n, G, D]
};

}  // namespace

std::unique_ptr<Mixer> build(const MultiLevelAttentionConfig& config, const Builder& builder) {
  return std::make_unique<MultiLevelAttention>(config, builder);
}

}  // namespace tessera::nn
