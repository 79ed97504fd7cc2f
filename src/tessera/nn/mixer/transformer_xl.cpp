#include "tessera/nn/mixer/transformer_xl.h"

#include <cmath>

#include "tessera/nn/mixer/attend.h"
#include "tessera/nn/mixer/segment_memory.h"

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
    const Batch& batch = *context.batch;
    const Tensor q_NHD = q_(x_ND).reshape({n, h, d});
    const ops::ScoreOptions how = options(context);
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    Tensor o_NHD;
    if (const int64_t t = batch.equal_length();
        rows == nullptr && t > 0 && t <= config_.segment && zeros() == 0) {
      // every document is one segment without a memory
      o_NHD =
          attend_documents(q_NHD, memory_.keys(x_ND), memory_.values(x_ND), batch, how, dropout);
    } else {
      o_NHD = for_segments(batch, [&](size_t i, const Segment& s) {
        RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
        return document(q_NHD.narrow(0, s.begin, s.length), x_ND.narrow(0, s.begin, s.length), s,
                        row, how, dropout);
      });
    }
    return o_(o_NHD.reshape({n, h * d}));
  }

 private:
  /// Rows of zeros before the first token.
  int64_t zeros() const { return config_.init_mem == MemoryStart::zeros ? config_.mem_len : 0; }

  ops::ScoreOptions options(Context& context) const {
    const int64_t longest = context.batch->longest();
    ops::ScoreOptions how;
    how.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
    how.window = config_.same_length ? config_.mem_len : 0;
    ScoreSite site{config_.n_heads,
                   config_.head_dim,
                   config_.by_place() ? longest : std::min(longest + zeros(), config_.reach()),
                   how.scale,
                   [this](const Tensor& x) { return heads(q_(x)); },
                   [this](const Tensor& x) { return memory_.keys(x); }};
    how.term = position_->score_term(site, context);
    how.scale = site.scale;
    return how;
  }

  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }

  /// The queries of one document, stretch by stretch.
  Tensor document(const Tensor& q_THD,
                  const Tensor& x_TD,
                  const Segment& s,
                  RowState* row,
                  const ops::ScoreOptions& how,
                  const WeightDropout& dropout) const {
    const auto memory_of = [&](int64_t segment) { return segment - config_.mem_len; };
    const int64_t own = s.start / config_.segment * config_.segment;
    const Remembered remembered = memory_.remember(
        x_TD, s.start, std::max<int64_t>(0, memory_of(own)), row, /*with_inputs=*/false);
    std::vector<Tensor> out;
    for (const Stretch& stretch : stretches(s.start, s.length, config_.segment)) {
      const int64_t from = memory_of(stretch.segment), at = stretch.begin - s.start;
      std::vector<ops::KeyValues> kv = remembered.seen(std::max<int64_t>(0, from), stretch);
      if (zeros() > 0) stand_before(kv, from);
      out.push_back(ops::attention(q_THD.narrow(0, at, stretch.end - stretch.begin), kv,
                                   stretch.begin + zeros(), how, dropout.at(s.begin + at)));
    }
    return out.size() == 1 ? out[0] : at::cat(out);
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
