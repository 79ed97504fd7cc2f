#include "tessera/nn/select/pooled_indexer.h"

#include <cmath>
#include <iterator>

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/select/index_keys.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {
namespace {

class PooledIndexer final : public Select {
 public:
  PooledIndexer(const PooledIndexerConfig& config, const Builder& builder)
      : config_(config), name_(builder.prefix()), q_(builder, "q"), k_(builder, "k") {
    if (!config.norm) return;
    const spec::Scope of_heads = config.child_scope(builder.scope(), "norm");
    q_norm_ = build_norm(config.norm, builder.under("q_norm", of_heads));
    k_norm_ = build_norm(config.norm, builder.under("k_norm", of_heads));
  }

  int64_t block() const override { return config_.size; }
  int64_t dense_length(const Tensor&) const override { return config_.dense_length(); }

  Tensor choose(const SelectInput& input,
                Context& context,
                const StateRows* rows,
                size_t slot) const override {
    const Batch& batch = *context.batch;
    check_indexed_call(name_, context, rows, config_.kl_loss);
    const at::NoGradGuard no_gradients;
    std::vector<std::vector<Tensor>> held;  // of every document, in parts that follow one another
    const std::vector<Tensor> fresh = block_keys(input, context, rows, slot);
    for (size_t i = 0; i < fresh.size(); ++i) {
      if (rows == nullptr) {
        held.push_back({fresh[i]});
        continue;
      }
      TokenBuffer& kept = (*rows)[i]->tokens(slot);
      kept.append(fresh[i]);
      held.push_back(kept.spans(0, kept.length()));
    }
    if (batch.longest() <= config_.dense_length()) return {};
    const Tensor q_NHD = queries(input, context);
    const BySegment part(batch);
    return over_segments(batch, [&](size_t i, const Segment& s) {
      const Tensor q = part(q_NHD, i);
      return ops::top_pooled({q, ones(q), held[i], scale(), s.start}, config_.top_k, config_.size);
    });
  }

  void learn(const SelectInput& input,
             const Tensor& block_NK,
             const SelectedAttention& attention,
             Context& context) const override {
    if (!context.add_loss || config_.kl_loss == 0) return;
    const SelectInput constant{input.x_ND.detach(), input.latent_NQ.detach(), input.position};
    const Tensor q_NHD = queries(constant, context);
    const std::vector<Tensor> keys = block_keys(constant, context, nullptr, 0);
    const BySegment part(*context.batch);
    const Tensor loss_N = over_segments(*context.batch, [&](size_t i, const Segment&) {
      return ops::pooled_index_loss(
          part(q_NHD, i), keys[i], scale(), block_NK.defined() ? part(block_NK, i) : block_NK,
          config_.size, {part(attention.q_NHK, i), part(attention.k_NGK, i), attention.how});
    });
    context.add_loss("indexer_kl", config_.kl_loss * ops::ordered_sum(loss_N));
  }

 private:
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.head_dim)); }
  /// Every head has one voice.
  static Tensor ones(const Tensor& q_THD) {
    return at::ones({q_THD.size(0), q_THD.size(1)}, q_THD.options());
  }

  Tensor queries(const SelectInput& input, Context& context) const {
    const Tensor q_NE = q_(input.latent_NQ, context);
    const Tensor normed = normed_by(
        q_norm_.get(), q_NE.reshape({q_NE.size(0), config_.n_heads, config_.head_dim}), context);
    if (config_.rotary_dim == 0) return normed;
    const Rotation by =
        input.position->rotation(Side::query, config_.rotary_dim, ops::wide(normed), context);
    return ops::rope(normed, *by.table, pairs());
  }

  /// kI of the blocks that the call completes, [blocks, head_dim] for every segment. Takes the keys
  /// of open blocks from the rows, and leaves the call's own there.
  std::vector<Tensor> block_keys(const SelectInput& input,
                                 Context& context,
                                 const StateRows* rows,
                                 size_t slot) const {
    const Batch& batch = *context.batch;
    const int64_t size = config_.size;
    const Tensor k_ND = k_(input.x_ND, context);
    const BySegment part(batch);
    std::vector<Tensor> means;
    std::vector<int64_t> counts;
    BlockStarts starts;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Segment& s = batch.segments[i];
      const int64_t first = s.start / size, count = (s.start + s.length) / size - first;
      const Tensor raw = with_open(part(k_ND, i), first * size, s, rows, i, slot + 1);
      means.push_back(
          mean(raw.narrow(0, 0, count * size).reshape({count, size, config_.head_dim})));
      counts.push_back(count);
      for (int64_t b = first; b < first + count; ++b) starts.add(s, b * size, batch.n_tokens());
    }
    const Tensor mean_BD = at::cat(means);
    if (mean_BD.size(0) == 0) return means;
    const Tensor normed = normed_by(k_norm_.get(), mean_BD.unsqueeze(1), context);
    const Tensor turned = config_.rotary_dim == 0
                              ? normed
                              : ops::rope(normed,
                                          starts.table(*input.position, config_.rotary_dim,
                                                       ops::wide(normed), context),
                                          pairs());
    return turned.squeeze(1).split_with_sizes(counts);
  }

  /// The angles of blocks: those of the tokens that they begin with.
  class BlockStarts {
   public:
    /// A block that begins at `position` of the segment's document, in a call of n tokens.
    void add(const Segment& s, int64_t position, int64_t n) {
      if (position >= s.start) return rows_.push_back(s.begin + position - s.start);
      // before the call; as a token of a document of this length, by which scalings go
      const auto at = std::ssize(earlier_);
      earlier_.push_back(position);
      before_.segments.push_back({.row = s.row, .begin = at, .length = 1});
      before_.segments.back().start = s.document() - 1;
      rows_.push_back(n + at);
    }
    ops::RotaryTable table(const Position& position,
                           int64_t width,
                           at::ScalarType type,
                           Context& context) {
      ops::RotaryTable all = *position.rotation(Side::key, width, type, context).table;
      const at::Device device = all.cos_NR.device();
      if (!earlier_.empty()) {
        before_.positions_N = at::tensor(earlier_, at::kLong).to(device);
        Context inner = context.over(before_);
        const ops::RotaryTable& more = *position.rotation(Side::key, width, type, inner).table;
        all = {at::cat({all.cos_NR, more.cos_NR}), at::cat({all.sin_NR, more.sin_NR})};
      }
      const Tensor rows = at::tensor(rows_, at::kLong).to(device);
      return {all.cos_NR.index_select(0, rows), all.sin_NR.index_select(0, rows)};
    }

   private:
    std::vector<int64_t> rows_, earlier_;
    Batch before_;
  };

  /// The raw keys from position `from` on, where the open block begins: those of the row, then the
  /// call's.
  Tensor with_open(const Tensor& k_TD,
                   int64_t from,
                   const Segment& s,
                   const StateRows* rows,
                   size_t row,
                   size_t slot) const {
    if (rows == nullptr || config_.size == 1) return k_TD;
    TokenBuffer& kept = (*rows)[row]->tokens(slot);
    require(kept.length() == s.start, name_, "the state holds {} keys, the call starts at {}",
            kept.length(), s.start);
    const Tensor fresh = kept.stored(k_TD);
    Tensor all = fresh;
    if (from < s.start) all = at::cat({kept.joined(from, s.start), fresh});
    kept.append(fresh);
    return all.to(k_TD.scalar_type());
  }

  /// Token after token: no bits depend on the number of blocks.
  static Tensor mean(const Tensor& k_BSD) {
    const Tensor wide_BSD = k_BSD.to(ops::wide(k_BSD));
    Tensor sum = wide_BSD.select(1, 0);
    for (int64_t j = 1; j < wide_BSD.size(1); ++j) sum = sum + wide_BSD.select(1, j);
    return (sum / static_cast<double>(wide_BSD.size(1))).to(k_BSD.scalar_type());
  }

  static Tensor normed_by(const Norm* norm, const Tensor& x_NHD, const Context& context) {
    return norm != nullptr ? norm->forward(x_NHD, context.products) : x_NHD;
  }
  bool pairs() const { return config_.layout == RopeLayout::interleaved; }

  PooledIndexerConfig config_;
  std::string name_;
  Linear q_, k_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
};

}  // namespace

std::unique_ptr<Select> build(const PooledIndexerConfig& config, const Builder& builder) {
  return std::make_unique<PooledIndexer>(config, builder);
}

}  // namespace tessera::nn
