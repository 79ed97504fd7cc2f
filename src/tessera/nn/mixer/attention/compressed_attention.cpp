#include "tessera/nn/mixer/attention/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/mixer/attention/compressed_attention_parts.h"
#include "tessera/nn/mixer/attention/compressed_attention_step.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/select/index_keys.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/compressed_attention.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/rope.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

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
    const Tensor latent_NQ = query_latent(x_ND, context), q_NHK = queries(latent_NQ, context),
                 k_N1K = turned(normed(kv_(x_ND, context), kv_norm_, context).unsqueeze(1),
                                Side::key, context);
    std::vector<Tensor> entries(context.batch->segments.size()), chosen = entries;
    if (pool_) {
      EntryCall& completed = *entry_call_of(context, rows, config_.block);
      entries = pooled(*pool_, x_ND, completed, kEntrySlots, context, rows);
      if (index_pool_) chosen = choose(x_ND, latent_NQ, completed, context, rows);
    }
    const Tensor o_NHK = attend(q_NHK, k_N1K, entries, chosen, context, rows);
    if (index_pool_ && rows == nullptr)
      learn(x_ND, latent_NQ, q_NHK, k_N1K, entries, chosen, context);
    const Tensor o_NA = turned_back(o_NHK, context).flatten(1);
    return o_(config_.o_lora_rank > 0 ? o_a_(o_NA, context) : o_NA, context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    return compressed_attention_step(
        {config_, q_a_, q_, kv_, index_q_, index_weights_, o_a_, o_, q_a_norm_.get(),
         query_norm_.get(), kv_norm_.get(), pool_ ? &*pool_ : nullptr,
         index_pool_ ? &*index_pool_ : nullptr, sinks_, *position_},
        products);
  }

 private:
  void check_call(const Context& context, const StateRows* rows) const {
    check_indexed_call(name_, context, rows, config_.indexed() ? config_.index.kl_loss : 0);
    if (context.batch->axes_3N.defined() && pool_)
      fail(ErrorKind::input, name_,
           "found positions in time, height and width; expected position_ids [B, T], which entries "
           "have too");
  }

  static Tensor normed(const Tensor& x, const std::unique_ptr<Norm>& norm, const Context& context) {
    return norm ? norm->forward(x, context.products) : x;
  }

  Tensor query_latent(const Tensor& x_ND, const Context& context) const {
    return q_a_.weight ? normed(q_a_(x_ND, context), q_a_norm_, context) : x_ND;
  }
  Tensor queries(const Tensor& latent_NQ, Context& context) const {
    const Tensor q =
        q_(latent_NQ, context).reshape({latent_NQ.size(0), config_.n_heads, config_.head_dim});
    return turned(normed(q, query_norm_, context), Side::query, context);
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

  /// The entries that every segment completes, rotated, [n, 1, width]; rows keep what tokens that
  /// are still to be pooled need.
  std::vector<Tensor> pooled(const EntryPool& pool,
                             const Tensor& x_ND,
                             EntryCall& entries,
                             EntrySlots slots,
                             const Context& context,
                             const StateRows* rows) const {
    const Batch& batch = *context.batch;
    const BySegment part(batch), part_of_entries(entries.batch);
    const Tensor tokens_NA = pool.tokens(x_ND, context);
    std::vector<Tensor> all;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const int64_t start = start_of_call(batch.segments[i], rows), first = entries.first[i],
                    n = entries.batch.segments[i].length;
      Tensor own = part(tokens_NA, i);
      TokenBuffer* held = rows != nullptr ? &(*rows)[i]->tokens(slots.tokens) : nullptr;
      if (held != nullptr) {
        require(held->length() == start, name_, "the state holds {} tokens, the call starts at {}",
                held->length(), start);
        own = held->stored(own);
      }
      if (n > 0) all.push_back(pool.completed(held, own, first, n, x_ND.scalar_type(), context.products));
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
    return turned(index_q_(latent_NQ, context)
                      .reshape({latent_NQ.size(0), config_.index.n_heads, config_.index.head_dim}),
                  Side::query, context);
  }
  Tensor index_weights(const Tensor& x_ND, const Context& context) const {
    return index_weights_(x_ND, context) / std::sqrt(static_cast<double>(config_.index.n_heads));
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
        pooled(*index_pool_, x_ND, entries, kIndexKeySlots, context, rows);
    const Tensor q_NHD = index_queries(latent_NQ, context), w_NH = index_weights(x_ND, context);
    std::vector<Tensor> out;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Tensor own = fresh[i].defined() ? fresh[i].squeeze(1) : Tensor();
      const std::vector<Tensor> keys =
          held_entries(own, kIndexKeySlots.entries(), rows != nullptr ? (*rows)[i] : nullptr);
      const int64_t start = start_of_call(batch.segments[i], rows),
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
    const std::shared_ptr<EntryCall> call = entry_call_of(context, nullptr, config_.block);
    const Tensor x = x_ND.detach(), q_NHD = index_queries(latent_NQ.detach(), context),
                 w_NH = index_weights(x, context);
    const std::vector<Tensor> keys =
        pooled(*index_pool_, x, *call, kIndexKeySlots, context, nullptr);
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
      const int64_t start = start_of_call(batch.segments[i], rows),
                    length = batch.segments[i].length;
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
        for (const Tensor& held : held_entries(entries[i], kEntrySlots.entries(), row)) {
          add(held);
          keys.entries += held.size(0);
        }
      Tensor own = part(k_N1K, i);
      keys.from = start;
      if (row != nullptr) {
        TokenBuffer& held = row->tokens(kCompressedKeysSlot);
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
            keys, chosen[i], start, ops::documents_apart(q_NHK) || chosen[i].defined());
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
