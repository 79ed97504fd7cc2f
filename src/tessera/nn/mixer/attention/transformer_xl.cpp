#include "tessera/nn/mixer/attention/transformer_xl.h"

#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/segment_memory.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

class TransformerXl final : public Mixer {
 public:
  TransformerXl(const TransformerXlConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        o_(builder, "o"),
        memory_(builder, config.n_heads, config.head_dim, config.segment, 0),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, d = config_.head_dim;
    const SegmentCall call{
        *context.batch,           rows,
        heads(q_(x_ND, context)), x_ND,
        options(context),         weight_dropout(context, name_, config_.dropout)};
    std::vector<Tensor> out;
    for (const EqualSegments& group : equal_segments(call.batch, ops::documents_apart(x_ND)))
      out.push_back(documents(group, call, context));
    const Tensor o_NHD = out.size() == 1 ? out[0] : at::cat(out);
    return o_(o_NHD.reshape({n, h * d}), context);
  }

 private:
  /// Rows of zeros before the first token.
  int64_t zeros() const { return config_.init_mem == MemoryStart::zeros ? config_.mem_len : 0; }

  ops::ScoreOptions options(Context& context) const {
    const int64_t longest = context.batch->longest();
    ops::ScoreOptions how;
    how.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
    how.window = config_.same_length ? config_.mem_len : 0;
    return with_term(
        std::move(how), *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = config_.by_place() ? longest : std::min(longest + zeros(), config_.reach()),
         .project_q = [this, &context](const Tensor& x) { return heads(q_(x, context)); },
         .project_k = [this, &context](const Tensor& x) { return memory_.keys(x, context); }},
        context);
  }

  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }

  /// The queries of documents alike, stretch by stretch.
  Tensor documents(const EqualSegments& group,
                   const SegmentCall& call,
                   const Context& context) const {
    const Segment& s = call.batch.segments[group.first];
    const auto memory_of = [&](int64_t segment) { return segment - config_.mem_len; };
    const int64_t own = s.start / config_.segment * config_.segment,
                  first = std::max<int64_t>(0, memory_of(own));
    std::vector<Remembered> remembered;
    for (size_t i = group.first; i < group.first + group.count; ++i)
      remembered.push_back(memory_.remember(call.x_of(i), s.start, first, call.row_of(i),
                                            /*with_inputs=*/false, context));
    const std::vector<Stretch> parts = stretches(s.start, s.length, config_.segment);
    const std::vector<Tensor> q_BTHD = by_stretch(call.queries_BTHD(group), parts);
    std::vector<Tensor> out;
    for (const Stretch& stretch : parts) {
      const int64_t from = memory_of(stretch.segment), at = stretch.begin - s.start;
      std::vector<std::vector<ops::KeyValues>> seen;
      for (const Remembered& document : remembered) {
        seen.push_back(document.seen(std::max<int64_t>(0, from), stretch));
        if (zeros() > 0) stand_before(seen.back(), from);
      }
      out.push_back(attend_alike(q_BTHD[out.size()], seen, stretch.begin + zeros(),
                                 call.dropout_of(group, call.how, at)));
    }
    return (out.size() == 1 ? out[0] : at::cat(out, 1)).flatten(0, 1);
  }

  /// Shifts positions so that those of the zeros begin at 0, and adds the ones seen from `from` on.
  void stand_before(std::vector<ops::KeyValues>& kv, int64_t from) const {
    for (ops::KeyValues& part : kv) part.first += zeros();
    if (from >= 0) return;
    // without a bias, the projections of zeros are zeros
    const Tensor none =
        at::zeros({-from, config_.n_heads, config_.head_dim}, kv.front().k_SGD.options());
    kv.insert(kv.begin(), {none, none, zeros() + from});
  }

  TransformerXlConfig config_;
  std::string name_;
  Linear q_, o_;
  InputMemory memory_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const TransformerXlConfig& config, const Builder& builder) {
  return std::make_unique<TransformerXl>(config, builder);
}

}  // namespace tessera::nn
