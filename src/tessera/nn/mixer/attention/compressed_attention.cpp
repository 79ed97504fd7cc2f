#include "tessera/nn/mixer/attention/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/select/index_keys.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/compressed_attention.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/rope.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

// --- what a query sees -----------------------------------------------------------------------

/// Keys are the entries 0 .. entries - 1, then the tokens from position `from` on; the query at
/// position p of the document stands at entries + p - from.
struct EntriesThenTokens {
  int64_t entries = 0, from = 0, every = 1, window = 1;
  int64_t of_position(int64_t position) const { return entries + position - from; }
  int64_t position(int64_t key) const { return key - entries + from; }
};

class EntriesAndWindow final : public kernels::Visibility {
 public:
  /// entry_TK: as ops::top_entries gives them, of queries at positions start, start + 1, ..;
  /// undefined = all entries are read.
  EntriesAndWindow(const EntriesThenTokens& keys, Tensor entry_TK, int64_t start, bool scattered)
      : keys_(keys), entry_TK_(std::move(entry_TK)), start_(start), scattered_(scattered) {}

  int64_t multiplicity(int64_t, int64_t query, int64_t key) const override {
    const int64_t p = keys_.position(query);
    if (key >= keys_.entries) return key <= query && key > query - keys_.window ? 1 : 0;
    if (key >= met(p)) return 0;
    const auto [begin, end] = chosen(p);
    return begin == nullptr || std::binary_search(begin, end, static_cast<int32_t>(key)) ? 1 : 0;
  }
  void counts(int64_t,
              kernels::KeyRange queries,
              kernels::KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    const auto fill = [&](int64_t begin, int64_t end) {
      begin = std::max(begin, keys.begin), end = std::min(end, keys.end);
      if (begin < end) std::fill(out + begin - keys.begin, out + end - keys.begin, int8_t{1});
    };
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      std::fill_n(out, keys.end - keys.begin, int8_t{0});
      const int64_t p = keys_.position(query);
      if (const auto [begin, end] = chosen(p); begin == nullptr)
        fill(0, met(p));
      else
        for (auto entry = begin; entry != end; ++entry) fill(*entry, *entry + 1);
      fill(first_token(query), query + 1);
    }
  }
  void list(int64_t,
            int64_t query,
            int64_t end,
            std::vector<kernels::VisibleKey>& out) const override {
    out.clear();
    const int64_t p = keys_.position(query);
    if (const auto [first, last] = chosen(p); first == nullptr)
      for (int64_t entry = 0; entry < met(p); ++entry) out.push_back({entry, 1});
    else
      for (auto entry = first; entry != last; ++entry) out.push_back({*entry, 1});
    for (int64_t key = first_token(query); key < std::min(query + 1, end); ++key)
      out.push_back({key, 1});
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t begin, int64_t end) const override {
    std::vector<kernels::KeyRange> runs;
    const auto add = [&](int64_t from, int64_t to) {
      if (from >= to) return;
      if (!runs.empty() && runs.back().end == from)
        runs.back().end = to;
      else
        runs.push_back({from, to});
    };
    const int64_t last = keys_.position(end - 1);
    if (const auto [first, stop] = chosen(last); first == nullptr || end - begin > 1)
      add(0, met(last));
    else
      for (auto entry = first; entry != stop; ++entry) add(*entry, *entry + 1);
    add(first_token(begin), end);
    return runs;
  }
  bool scattered() const override { return scattered_; }

 private:
  int64_t met(int64_t position) const {
    return std::min(keys_.entries, (position + 1) / keys_.every);
  }
  int64_t first_token(int64_t query) const {
    return std::max(keys_.entries, query - keys_.window + 1);
  }
  /// The entries of a query that reads some of them alone; null pointers where it reads all.
  std::pair<const int32_t*, const int32_t*> chosen(int64_t position) const {
    if (!entry_TK_.defined() || met(position) <= entry_TK_.size(1)) return {nullptr, nullptr};
    const int32_t* entries =
        entry_TK_.const_data_ptr<int32_t>() + (position - start_) * entry_TK_.size(1);
    return {entries, entries + entry_TK_.size(1)};
  }

  EntriesThenTokens keys_;
  Tensor entry_TK_;
  int64_t start_;
  bool scattered_;
};

// --- pooling ---------------------------------------------------------------------------------

/// Blocks of tokens as entries of `width` channels.
class EntryPool {
 public:
  EntryPool(const CompressedAttentionConfig& config, const Builder& builder, int64_t width)
      : kv_(builder, "kv"),
        gate_(builder, "gate"),
        place_(builder.weight("place")),
        block_(config.block),
        series_(config.series()),
        width_(width) {
    if (config.norm)
      norm_ =
          build_norm(config.norm, builder.under("norm", config.norm_scope(builder.scope(), width)));
  }

  /// C and Z of every token, [N, 2 * series * width].
  Tensor tokens(const Tensor& x_ND) const { return at::cat({kv_(x_ND), gate_(x_ND)}, 1); }

  /// Tokens of the block before the first one that are pooled with it.
  int64_t before() const { return (series_ - 1) * block_; }

  /// The entries of whole blocks, from what tokens() made of their tokens and, unless the first one
  /// begins the document, of the block before: [n, width], not rotated.
  Tensor entries(const Tensor& tokens_SA, bool begins) const {
    const int64_t blocks = tokens_SA.size(0) / block_, skip = begins ? 0 : series_ - 1,
                  n = blocks - skip;
    const Tensor all = tokens_SA.reshape({blocks, block_, 2, series_, width_}),
                 content = all.select(2, 0), logits = all.select(2, 1);
    const Tensor place = place_->tensor()
                             .to(logits.device(), logits.scalar_type())
                             .reshape({block_, series_, width_});
    const Tensor placed = logits + ops::spread(place, logits);
    // rows of an entry: those of the block before, then its own
    const auto rows_of = [&](const Tensor& x, double none) {
      const Tensor own = x.narrow(0, skip, n).select(2, series_ - 1);
      if (series_ == 1) return own;
      Tensor before = x.narrow(0, 0, blocks - 1).select(2, 0);
      if (begins) before = at::cat({at::full({1, block_, width_}, none, x.options()), before});
      return at::cat({before, own}, 1);
    };
    const Tensor c_nRD = rows_of(content, 0),
                 z_nDR = rows_of(placed, -std::numeric_limits<double>::infinity())
                             .transpose(1, 2)
                             .to(ops::wide(placed))
                             .contiguous();
    const Tensor w_nDR = ops::softmax(z_nDR).to(c_nRD.scalar_type());
    // row after row: no bits depend on the number of blocks
    Tensor sum = w_nDR.select(2, 0) * c_nRD.select(1, 0);
    for (int64_t r = 1; r < c_nRD.size(1); ++r) sum = sum + w_nDR.select(2, r) * c_nRD.select(1, r);
    return norm_ ? norm_->forward(sum) : sum;
  }

 private:
  Linear kv_, gate_;
  WeightPtr place_;
  std::unique_ptr<Norm> norm_;
  int64_t block_, series_, width_;
};

/// The entries that a call completes, as tokens at the positions of their first tokens.
struct EntryCall {
  Batch batch;
  Context context;
  std::vector<int64_t> first;  // of each segment: the number of its first entry
};

int64_t start_of(const Segment& s, const StateRows* rows) {
  return rows != nullptr ? s.start : 0;
}

std::shared_ptr<EntryCall> entry_call(const Batch& batch, const StateRows* rows, int64_t every) {
  auto made = std::make_shared<EntryCall>();
  std::vector<int64_t> positions;
  for (const Segment& s : batch.segments) {
    const int64_t start = start_of(s, rows), first = start / every,
                  last = (start + s.length) / every;
    made->first.push_back(first);
    made->batch.segments.push_back(
        {s.row, static_cast<int64_t>(positions.size()), last - first, first});
    for (int64_t e = first; e < last; ++e) positions.push_back(e * every);
  }
  made->batch.positions_N = at::tensor(positions, at::kLong).to(batch.positions_N.device());
  made->batch.ids_N = at::zeros({static_cast<int64_t>(positions.size())}, at::kLong);
  return made;
}

// --- the mixer -------------------------------------------------------------------------------

class CompressedAttention final : public Mixer {
 public:
  CompressedAttention(const CompressedAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        kv_(builder, "kv"),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    const auto norm = [&](const char* name, int64_t width) -> std::unique_ptr<Norm> {
      if (!config.norm) return nullptr;
      return build_norm(config.norm,
                        builder.under(name, config.norm_scope(builder.scope(), width)));
    };
    if (config.q_lora_rank > 0) {
      q_a_ = Linear(builder, "q_a");
      q_a_norm_ = norm("q_a_norm", config.q_lora_rank);
      q_ = Linear(builder, "q_b");
    } else {
      q_ = Linear(builder, "q");
    }
    if (config.query_norm)
      query_norm_ = build_norm(
          config.query_norm,
          builder.under("query_norm", config.child_scope(builder.scope(), "query_norm")));
    kv_norm_ = norm("kv_norm", config.head_dim);
    if (config.block > 0) pool_.emplace(config, builder.under("pool"), config.head_dim);
    if (config.indexed()) {
      index_q_ = Linear(builder, "index_q");
      index_weights_ = Linear(builder, "index_weights");
      index_pool_.emplace(config, builder.under("index_pool"), config.index.head_dim);
    }
    if (config.sinks) sinks_ = builder.weight("sinks");
    if (config.o_lora_rank > 0) {
      o_a_ = GroupedLinear(builder, "o_a", config.o_groups);
      o_ = Linear(builder, "o_b");
    } else {
      o_ = Linear(builder, "o");
    }
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    check_call(context, rows);
    const Tensor latent_NQ = query_latent(x_ND), q_NHK = queries(latent_NQ, context),
                 k_N1K = turned(normed(kv_(x_ND), kv_norm_).unsqueeze(1), Side::key, context);
    std::vector<Tensor> entries(context.batch->segments.size()), chosen = entries;
    if (pool_) {
      EntryCall& completed = *entry_call_of(context, rows);
      entries = pooled(*pool_, x_ND, completed, kEntriesSlot, context, rows);
      if (index_pool_) chosen = choose(x_ND, latent_NQ, completed, context, rows);
    }
    const Tensor o_NHK = attend(q_NHK, k_N1K, entries, chosen, context, rows);
    if (index_pool_ && rows == nullptr)
      learn(x_ND, latent_NQ, q_NHK, k_N1K, entries, chosen, context);
    const Tensor o_NA = turned_back(o_NHK, context).flatten(1);
    return o_(config_.o_lora_rank > 0 ? o_a_(o_NA) : o_NA);
  }

 private:
  // places of the declarations of CompressedAttentionConfig::state
  static constexpr size_t kKeysSlot = 0, kEntriesSlot = 1, kIndexSlot = 3;

  void check_call(const Context& context, const StateRows* rows) const {
    check_indexed_call(name_, context, rows, config_.indexed() ? config_.index.kl_loss : 0);
    if (context.batch->axes_3N.defined() && pool_)
      fail(ErrorKind::input, name_,
           "found positions in time, height and width; expected position_ids [B, T], which entries "
           "have too");
  }

  static Tensor normed(const Tensor& x, const std::unique_ptr<Norm>& norm) {
    return norm ? norm->forward(x) : x;
  }

  Tensor query_latent(const Tensor& x_ND) const {
    return q_a_.weight ? normed(q_a_(x_ND), q_a_norm_) : x_ND;
  }
  Tensor queries(const Tensor& latent_NQ, Context& context) const {
    const Tensor q = q_(latent_NQ).reshape({latent_NQ.size(0), config_.n_heads, config_.head_dim});
    return turned(normed(q, query_norm_), Side::query, context);
  }

  /// `turn` of the last rope_head_dim channels of every head.
  template <class Turn>
  Tensor of_last_channels(const Tensor& x_NHK, const Turn& turn) const {
    const int64_t r = config_.rope_head_dim, still = x_NHK.size(2) - r;
    if (still == 0) return turn(x_NHK);
    return at::cat({x_NHK.narrow(2, 0, still), turn(x_NHK.narrow(2, still, r))}, 2);
  }
  Tensor turned(const Tensor& x_NHK, Side side, Context& context) const {
    return of_last_channels(x_NHK,
                            [&](const Tensor& x) { return position_->rotate(x, side, context); });
  }
  /// By the angles of the queries, the other way round.
  Tensor turned_back(const Tensor& o_NHK, Context& context) const {
    const Rotation by =
        position_->rotation(Side::query, config_.rope_head_dim, ops::wide(o_NHK), context);
    if (by.table == nullptr) return o_NHK;
    const ops::RotaryTable back{by.table->cos_NR, -by.table->sin_NR};
    return of_last_channels(o_NHK,
                            [&](const Tensor& x) { return ops::rope(x, back, by.interleaved); });
  }

  // --- entries -------------------------------------------------------------------------------

  std::shared_ptr<EntryCall> entry_call_of(Context& context, const StateRows* rows) const {
    const auto name = fmt::format("entries of {} tokens", config_.block);
    const auto& made = context.once<std::shared_ptr<EntryCall>>(
        name, [&] { return entry_call(*context.batch, rows, config_.block); });
    made->context.causal = context.causal;
    made->context.training = context.training;
    made->context.batch = &made->batch;
    return made;
  }

  /// The entries that every segment completes, rotated, [n, 1, width]. Rows keep what tokens that
  /// are still to be pooled need, in `slot`, and the entries, in the one after.
  std::vector<Tensor> pooled(const EntryPool& pool,
                             const Tensor& x_ND,
                             EntryCall& entries,
                             size_t slot,
                             const Context& context,
                             const StateRows* rows) const {
    const Batch& batch = *context.batch;
    const BySegment part(batch), part_of_entries(entries.batch);
    const Tensor tokens_NA = pool.tokens(x_ND);
    const int64_t m = config_.block;
    std::vector<Tensor> all;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const int64_t start = start_of(batch.segments[i], rows), first = entries.first[i],
                    n = entries.batch.segments[i].length;
      Tensor own = part(tokens_NA, i);
      TokenBuffer* held = rows != nullptr ? &(*rows)[i]->tokens(slot) : nullptr;
      if (held != nullptr) {
        require(held->length() == start, name_, "the state holds {} tokens, the call starts at {}",
                held->length(), start);
        own = held->stored(own);
      }
      const int64_t from = std::max<int64_t>(0, first * m - pool.before());
      if (n > 0) {
        std::vector<Tensor> parts;
        if (held != nullptr && from < start) parts = held->spans(from, start);
        parts.push_back(own);
        const Tensor raw = parts.size() == 1 ? own : at::cat(parts);
        const int64_t skip = held != nullptr ? 0 : from;
        all.push_back(pool.entries(
            raw.narrow(0, skip, (first + n) * m - from).to(x_ND.scalar_type()), first == 0));
      }
      if (held != nullptr) held->append(own);
    }
    if (all.empty()) return std::vector<Tensor>(batch.segments.size());
    const Tensor rotated = turned(at::cat(all).unsqueeze(1), Side::key, entries.context);
    std::vector<Tensor> out;
    for (size_t i = 0; i < batch.segments.size(); ++i) out.push_back(part_of_entries(rotated, i));
    return out;
  }

  /// All entries of a row, those of the call included, in parts.
  std::vector<Tensor> held_entries(const Tensor& fresh, size_t slot, RowState* row) const {
    if (row == nullptr) return fresh.defined() ? std::vector<Tensor>{fresh} : std::vector<Tensor>();
    TokenBuffer& held = row->tokens(slot);
    if (fresh.defined() && fresh.size(0) > 0) held.append(fresh);
    return held.length() > 0 ? held.spans(0, held.length()) : std::vector<Tensor>();
  }

  // --- the choice ----------------------------------------------------------------------------

  Tensor index_queries(const Tensor& latent_NQ, Context& context) const {
    return turned(index_q_(latent_NQ).reshape(
                      {latent_NQ.size(0), config_.index.n_heads, config_.index.head_dim}),
                  Side::query, context);
  }
  Tensor index_weights(const Tensor& x_ND) const {
    return index_weights_(x_ND) / std::sqrt(static_cast<double>(config_.index.n_heads));
  }
  ops::EntryQueries indexed(Tensor q_THD,
                            Tensor w_TH,
                            std::vector<Tensor> k_ED,
                            int64_t start) const {
    return {std::move(q_THD),
            std::move(w_TH),
            std::move(k_ED),
            1 / std::sqrt(static_cast<double>(config_.index.head_dim)),
            start,
            config_.block};
  }

  /// The entries that the queries of each segment read (ops::top_entries).
  std::vector<Tensor> choose(const Tensor& x_ND,
                             const Tensor& latent_NQ,
                             EntryCall& entries,
                             Context& context,
                             const StateRows* rows) const {
    const at::NoGradGuard no_gradients;
    const Batch& batch = *context.batch;
    const BySegment part(batch);
    const std::vector<Tensor> fresh =
        pooled(*index_pool_, x_ND, entries, kIndexSlot, context, rows);
    const Tensor q_NHD = index_queries(latent_NQ, context), w_NH = index_weights(x_ND);
    std::vector<Tensor> out;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Tensor own = fresh[i].defined() ? fresh[i].squeeze(1) : Tensor();
      const std::vector<Tensor> keys =
          held_entries(own, kIndexSlot + 1, rows != nullptr ? (*rows)[i] : nullptr);
      const int64_t start = start_of(batch.segments[i], rows),
                    end = start + batch.segments[i].length;
      const bool all = end / config_.block <= config_.index.top_k;
      out.push_back(all ? Tensor()
                        : ops::top_entries(indexed(part(q_NHD, i), part(w_NH, i), keys, start),
                                           config_.index.top_k));
    }
    return out;
  }

  /// Adds the loss by which the indexer learns, of whole documents.
  void learn(const Tensor& x_ND,
             const Tensor& latent_NQ,
             const Tensor& q_NHK,
             const Tensor& k_N1K,
             const std::vector<Tensor>& entries,
             const std::vector<Tensor>& chosen,
             Context& context) const {
    if (!context.add_loss || config_.index.kl_loss == 0) return;
    const BySegment part(*context.batch);
    const std::shared_ptr<EntryCall> call = entry_call_of(context, nullptr);
    const Tensor x = x_ND.detach(), q_NHD = index_queries(latent_NQ.detach(), context),
                 w_NH = index_weights(x);
    const std::vector<Tensor> keys = pooled(*index_pool_, x, *call, kIndexSlot, context, nullptr);
    Tensor sum;
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      if (!keys[i].defined() || keys[i].size(0) == 0) continue;
      const Tensor loss_T = ops::entry_index_loss(
          indexed(part(q_NHD, i), part(w_NH, i), {keys[i].squeeze(1)}, 0), chosen[i],
          {part(q_NHK, i).detach(), part(k_N1K, i).squeeze(1).detach(),
           entries[i].squeeze(1).detach(), score_scale(), config_.window,
           sinks_ ? sinks_->tensor() : Tensor()});
      const Tensor own = ops::ordered_sum(loss_T);
      sum = sum.defined() ? sum + own : own;
    }
    if (sum.defined()) context.add_loss("indexer_kl", config_.index.kl_loss * sum);
  }

  // --- the softmax ---------------------------------------------------------------------------

  double score_scale() const { return 1 / std::sqrt(static_cast<double>(config_.head_dim)); }

  Tensor attend(const Tensor& q_NHK,
                const Tensor& k_N1K,
                const std::vector<Tensor>& entries,
                const std::vector<Tensor>& chosen,
                const Context& context,
                const StateRows* rows) const {
    const Batch& batch = *context.batch;
    const BySegment part(batch);
    std::vector<ops::AttentionCall> calls;
    std::vector<std::function<void()>> later;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
      const int64_t start = start_of(batch.segments[i], rows), length = batch.segments[i].length;
      EntriesThenTokens keys;
      keys.every = std::max<int64_t>(1, config_.block);
      keys.window = config_.window;
      ops::AttentionCall call{part(q_NHK, i), {}, 0, {}};
      call.options.scale = score_scale();
      if (sinks_) call.options.sinks_H = sinks_->tensor();
      const auto add = [&](const Tensor& k) {
        if (k.size(0) == 0) return;
        const int64_t first =
            call.kv.empty() ? 0 : call.kv.back().first + call.kv.back().k_SGD.size(0);
        call.kv.push_back({k, k, first});
      };
      if (pool_)
        for (const Tensor& held : held_entries(entries[i], kEntriesSlot + 1, row)) {
          add(held);
          keys.entries += held.size(0);
        }
      Tensor own = part(k_N1K, i);
      keys.from = start;
      if (row != nullptr) {
        TokenBuffer& held = row->tokens(kKeysSlot);
        require(held.length() == start, name_, "the state holds {} tokens, the call starts at {}",
                held.length(), start);
        own = held.stored(own);
        keys.from = std::max<int64_t>(0, start - config_.window + 1);
        // a window may not hold both the oldest key and all new ones: several stay outside
        if (length == 1) held.append(own);
        for (const Tensor& past : held.spans(keys.from, length == 1 ? start + 1 : start)) add(past);
        if (length > 1) later.push_back([&held, own] { held.append(own); });
      }
      if (row == nullptr || length > 1) add(own);
      call.start = keys.of_position(start);
      if (pool_)
        call.options.visibility = std::make_shared<EntriesAndWindow>(
            keys, chosen[i], start, ops::use_kernels(q_NHK) || chosen[i].defined());
      else
        call.options.window = config_.window;
      calls.push_back(std::move(call));
    }
    const Tensor o_NHK = ops::attention(calls);
    for (const auto& act : later) act();
    return o_NHK;
  }

  CompressedAttentionConfig config_;
  std::string name_;
  Linear q_a_, q_, kv_, index_q_, index_weights_, o_;
  GroupedLinear o_a_;
  std::unique_ptr<Norm> q_a_norm_, query_norm_, kv_norm_;
  std::optional<EntryPool> pool_, index_pool_;
  WeightPtr sinks_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const CompressedAttentionConfig& config, const Builder& builder) {
  return std::make_unique<CompressedAttention>(config, builder);
}

}  // namespace tessera::nn
