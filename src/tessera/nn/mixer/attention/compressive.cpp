#include "tessera/nn/mixer/attention/compressive.h"

#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/segment_memory.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

/// f: blocks of inputs [n * rate, D], after the `lead` inputs before them, to slots [n, D].
class Compressor {
 public:
  Compressor(const CompressiveConfig& config, const Builder& builder)
      : how_(config.compression),
        rate_(config.rate),
        dilation_(config.dilation),
        lead_(config.lead()) {
    if (builder.optional("compress.weight")) map_ = Linear(builder, "compress");
  }
  bool learns() const { return map_.weight != nullptr; }

  Tensor operator()(const Tensor& x_SD, const Context& context) const {
    const int64_t width = x_SD.size(1), n = (x_SD.size(0) - lead_) / rate_;
    if (how_ == Compression::dilated_conv) {
      std::vector<Tensor> taps;  // of all blocks, the last one at their ends
      for (int64_t back = rate_ - 1; back >= 0; --back) {
        const int64_t first = lead_ + rate_ - 1 - back * dilation_;
        taps.push_back(x_SD.slice(0, first, first + (n - 1) * rate_ + 1, rate_));
      }
      return map_(at::cat(taps, 1), context);
    }
    if (how_ == Compression::conv) return map_(x_SD.reshape({n, rate_ * width}), context);
    const Tensor blocks = x_SD.reshape({n, rate_, width});
    if (how_ == Compression::max) return blocks.amax(1);
    // token after token: no bits depend on the number of blocks
    Tensor sum = blocks.select(1, 0).to(ops::wide(x_SD));
    for (int64_t j = 1; j < rate_; ++j) sum = sum + blocks.select(1, j);
    return (sum / static_cast<double>(rate_)).to(x_SD.scalar_type());
  }

 private:
  Compression how_;
  int64_t rate_, dilation_, lead_;
  Linear map_;
};

/// What slots add to scores where they stand `rate` apart: positions of the call below `border` are
/// numbers of slots up to it, the last one `rate` before it.
ops::ScoreTerm spread(const ops::ScoreTerm& term, int64_t border, int64_t rate) {
  require(!term.values, "compressive", "a position that adds values cannot be spread");
  ops::ScoreTerm out;
  out.inputs = term.inputs;
  out.numbers = term.numbers;
  if (term.bias_HR.defined()) out.inputs.push_back(term.bias_HR);
  const auto direct = [table = term.bias_HR.defined(), bias = term.bias, zero = term.zero](
                          const ops::ScoreBlock& block, const std::vector<Tensor>& inputs) {
    if (!table) return bias(block, inputs);
    return ops::added_by_term({.bias_HR = inputs.back(), .zero = zero}, block);
  };
  out.bias = [direct, border, rate](const ops::ScoreBlock& block,
                                    const std::vector<Tensor>& inputs) {
    const int64_t s = block.k_BHSD.size(2);
    const int64_t slots = std::clamp<int64_t>(border - block.first_key, 0, s);
    std::vector<Tensor> parts;
    if (slots > 0) {
      // the scheme sees a key at every position and one column of `rate` is taken
      const Tensor keys = ops::repeat_each(block.k_BHSD.narrow(2, 0, slots), rate, 2);
      const int64_t first = border - (border - block.first_key) * rate;
      parts.push_back(direct({block.q_BHTD, keys, block.first_query, first, block.scale}, inputs)
                          .slice(-1, 0, slots * rate, rate));
    }
    if (slots < s) {
      const Tensor keys = block.k_BHSD.narrow(2, slots, s - slots);
      parts.push_back(direct(
          {block.q_BHTD, keys, block.first_query, block.first_key + slots, block.scale}, inputs));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
  };
  return out;
}

class Compressive final : public Mixer {
 public:
  Compressive(const CompressiveConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        o_(builder, "o"),
        memory_(builder, config.n_heads, config.head_dim, config.segment, 0),
        compress_(config, builder),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0);
    const SegmentCall call{
        *context.batch,           rows,
        heads(q_(x_ND, context)), x_ND,
        options(context),         weight_dropout(context, name_, config_.dropout)};
    const LossSink sink = compress_.learns() ? context.add_loss : LossSink();
    std::vector<Tensor> out;
    for (const EqualSegments& group : equal_segments(call.batch, ops::documents_apart(x_ND)))
      out.push_back(documents(group, call, sink, context));
    const Tensor o_NHD = out.size() == 1 ? out[0] : at::cat(out);
    return o_(o_NHD.reshape({n, config_.n_heads * config_.head_dim}), context);
  }

 private:
  /// Keys and values of slots from number `first` on.
  struct Slots {
    int64_t first = 0;
    Tensor k, v;
  };
  struct Document {
    Remembered inputs;
    std::vector<ops::KeyValues> slots;  // by number
  };
  static constexpr size_t kSlot = 3;  // of the slots' declarations, as the config declares them

  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.head_dim)); }

  ops::ScoreOptions options(Context& context) const {
    ops::ScoreOptions how;
    how.scale = scale();
    return with_term(
        std::move(how), *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = std::min(context.batch->longest(), config_.reach()),
         .project_q = [this, &context](const Tensor& x) { return heads(q_(x, context)); },
         .project_k = [this, &context](const Tensor& x) { return memory_.keys(x, context); }},
        context);
  }

  /// The queries of documents alike, stretch by stretch.
  Tensor documents(const EqualSegments& group,
                   const SegmentCall& call,
                   const LossSink& sink,
                   const Context& context) const {
    const Segment& s = call.batch.segments[group.first];
    std::vector<Document> held;
    for (size_t i = group.first; i < group.first + group.count; ++i)
      held.push_back(remember(call.x_of(i), s.start, call.row_of(i), context));
    const std::vector<Stretch> parts = stretches(s.start, s.length, config_.segment);
    const std::vector<Tensor> q_BTHD = by_stretch(call.queries_BTHD(group), parts);
    std::vector<Tensor> out;
    for (const Stretch& stretch : parts) {
      const int64_t border = config_.first_in_memory(stretch.segment), at = stretch.begin - s.start;
      const int64_t blocks = border / config_.rate, n = std::min(blocks, config_.n_compressed);
      std::vector<std::vector<ops::KeyValues>> seen;
      for (const auto& [inputs, slots] : held) {
        seen.push_back(inputs.seen(border, stretch));
        // positions continue downwards from the memory, a slot each
        std::vector<ops::KeyValues> before = cut(slots, blocks - n, blocks);
        for (ops::KeyValues& part : before) part.first += border - blocks;
        seen.back().insert(seen.back().begin(), before.begin(), before.end());
      }
      ops::ScoreOptions here = call.how;
      if (n > 0 && config_.distance == SlotDistance::scaled && here.term)
        here.term = spread(call.how.term, border, config_.rate);
      out.push_back(
          attend_alike(q_BTHD[out.size()], seen, stretch.begin, call.dropout_of(group, here, at)));
      if (sink && stretch.end == stretch.segment + config_.segment)
        for (const Document& document : held) reconstruct(document.inputs, stretch, sink, context);
    }
    return (out.size() == 1 ? out[0] : at::cat(out, 1)).flatten(0, 1);
  }

  /// What the queries of a call that begins at `start` can see of their document.
  Document remember(const Tensor& x_TD,
                    int64_t start,
                    RowState* row,
                    const Context& context) const {
    const int64_t own = start / config_.segment * config_.segment, rate = config_.rate;
    // the memory of the first segment, and the block that is under way
    int64_t first = config_.first_in_memory(own);
    if (config_.n_compressed == 0)
      return {memory_.remember(x_TD, start, first, row, false, context), {}};
    first = row != nullptr
                ? std::max<int64_t>(0, std::min(first, start / rate * rate) - config_.lead())
                : 0;
    const bool completes = (start + x_TD.size(0)) / rate > start / rate;
    Document out{memory_.remember(x_TD, start, first, row, completes, context), {}};
    const Slots slots =
        kept(fresh_slots(out.inputs, x_TD, start, context), start / rate, own, row, context);
    out.slots = in_pieces(slots.k, slots.v, slots.first,
                          std::max<int64_t>(1, config_.segment / config_.rate));
    return out;
  }

  /// The slots of the blocks that the call completes, [n, D], without a gradient.
  Tensor fresh_slots(const Remembered& remembered,
                     const Tensor& x_TD,
                     int64_t start,
                     const Context& context) const {
    const at::NoGradGuard no_gradients;
    const int64_t rate = config_.rate, begin = start / rate, end = (start + x_TD.size(0)) / rate;
    if (begin == end) return x_TD.narrow(0, 0, 0);
    return compress_(blocks(remembered, begin * rate, end * rate), context);
  }

  /// Inputs [begin, end), whole blocks, after those that lead to them.
  Tensor blocks(const Remembered& remembered, int64_t begin, int64_t end) const {
    const int64_t from = begin - config_.lead(), held = std::max<int64_t>(0, from);
    const Tensor x = remembered.x_SD.narrow(0, held - remembered.first, end - held);
    return from < 0 ? at::constant_pad_nd(x, {0, 0, -from, 0}) : x;
  }

  /// Adds slots from number `begin` on to what the row holds, and returns all that the segments
  /// from `own` on read.
  Slots kept(const Tensor& fresh,
             int64_t begin,
             int64_t own,
             RowState* row,
             const Context& context) const {
    if (row == nullptr) return {0, memory_.keys(fresh, context), memory_.values(fresh, context)};
    const int64_t n = fresh.size(0);
    const int64_t oldest = config_.first_in_memory(own) / config_.rate - config_.n_compressed;
    Slots out;
    out.first = std::max<int64_t>(0, oldest);
    const auto after_held = [&](size_t which, const Tensor& more) {
      std::vector<Tensor> parts = row->tokens(kSlot + which).spans(out.first, begin);
      parts.push_back(more);
      return at::cat(parts);
    };
    if (at::GradMode::is_enabled()) {
      const Tensor x = after_held(0, fresh);
      out.k = memory_.keys(x, context), out.v = memory_.values(x, context);
    } else {
      out.k = after_held(1, memory_.keys(fresh, context)),
      out.v = after_held(2, memory_.values(fresh, context));
    }
    const auto newest = [&](const Tensor& all) {
      return all.detach().narrow(0, begin - out.first, n);
    };
    row->tokens(kSlot).append(fresh);
    row->tokens(kSlot + 1).append(newest(out.k));
    row->tokens(kSlot + 2).append(newest(out.v));
    return out;
  }

  /// Adds the loss of the segment that ends with this stretch: what it would read by content from
  /// the inputs that leave the memory, against what it reads from their slots.
  void reconstruct(const Remembered& remembered,
                   const Stretch& stretch,
                   const LossSink& sink,
                   const Context& context) const {
    const int64_t from = config_.first_in_memory(stretch.segment),
                  to = config_.first_in_memory(stretch.segment + config_.segment);
    if (from == to) return;
    const auto inputs = [&](int64_t begin, int64_t end) {
      return remembered.x_SD.narrow(0, begin - remembered.first, end - begin);
    };
    const Tensor x = inputs(stretch.segment, stretch.end), old = inputs(from, to);
    const auto fixed = [&](const Tensor& input, const ops::Weight& weight) {
      return heads(
          ops::linear(input, ops::Weight::dense("fixed", weight.tensor(context.products).detach()),
                      nullptr, context.products));
    };
    ops::ScoreOptions by_content;
    by_content.scale = scale();
    by_content.causal = false;
    const Tensor q = fixed(x, *q_.weight);
    const auto read = [&](const Tensor& rows) {
      return ops::attention(q, {{fixed(rows, memory_.k()), fixed(rows, memory_.v()), 0}}, 0,
                            by_content);
    };
    const Tensor difference =
        read(compress_(blocks(remembered, from, to), context)) - read(old).detach();
    sink(name_ + ".reconstruction",
         config_.reconstruction * ops::ordered_sum(difference.to(ops::wide(difference)).square()));
  }

  CompressiveConfig config_;
  std::string name_;
  Linear q_, o_;
  InputMemory memory_;
  Compressor compress_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const CompressiveConfig& config, const Builder& builder) {
  return std::make_unique<Compressive>(config, builder);
}

}  // namespace tessera::nn
