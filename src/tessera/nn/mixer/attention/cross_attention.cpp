#include "tessera/nn/mixer/attention/cross_attention.h"

#include "tessera/nn/dropout.h"
#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/head_norms.h"
#include "tessera/nn/mixer/attention/score_scaling.h"
#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/form.h"
#include "tessera/ops/attention/fused_attention.h"

namespace tessera::nn {
namespace {

class CrossAttention final : public Mixer {
 public:
  CrossAttention(const CrossAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        q_norm_(builder, "q_norm", config, config.n_heads),
        k_norm_(builder, "k_norm", config, config.n_kv_heads),
        scale_(builder, config, config.head_dim) {
    how_.scale = scale_.on_logits();
    how_.softcap = config.softcap;
    how_.causal = false;
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor q_NHD = scale_.learned(q_norm_(q_(x_ND, context), context.products));
    // of all sources that this call brings
    ops::KeyValues sources;
    if (context.encoded != nullptr) {
      const Tensor& e_SD = context.encoded->x_SD;
      const ops::ProductSettings of_sources =
          context.products.with(input_drop(context, context.encoded->source));
      sources = {k_norm_(k_(e_SD, of_sources), of_sources),
                 v_(e_SD, of_sources).reshape({e_SD.size(0), config_.n_kv_heads, config_.head_dim}),
                 0};
    }
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    ops::ScoreOptions how = how_;
    how.products = context.products.type;
    const bool tiles = ops::tiles_serve_packed(q_NHD, how);
    if (rows == nullptr && !ops::documents_apart(q_NHD) &&
        (tiles || ops::fused_serves_packed(q_NHD, how)) && sources_in_order(context)) {
      const Tensor o_NHD = (tiles ? ops::flash_documents : ops::fused_documents)(
          q_NHD, sources.k_SGD, sources.v_SGD, lengths_of(*context.batch),
          lengths_of(context.encoded->source), dropout.in(how, context.batch->segments));
      return o_(o_NHD.reshape({x_ND.size(0), -1}), context);
    }
    const BySegment part(*context.batch);
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
      calls.push_back(
          {part(q_NHD, i), source_of(s.row, row, sources, context), s.start, dropout.in(how, s)});
    }
    const Tensor o_NHD = ops::attention(calls);
    return o_(o_NHD.reshape({x_ND.size(0), -1}), context);
  }

 private:
  /// Whether every segment's source is at its own place among the sources.
  static bool sources_in_order(const Context& context) {
    if (context.encoded == nullptr) return false;
    const auto &segments = context.batch->segments, &sources = context.encoded->source.segments;
    return std::equal(segments.begin(), segments.end(), sources.begin(), sources.end(),
                      [](const Segment& a, const Segment& b) { return a.row == b.row; });
  }

  /// Keys and values of a row's source: those that its state holds, else out of `sources`, which
  /// the state then keeps.
  std::vector<ops::KeyValues> source_of(int64_t number,
                                        RowState* row,
                                        const ops::KeyValues& sources,
                                        const Context& context) const {
    if (row == nullptr || row->source_length() == 0) {
      const Segment* s = context.encoded != nullptr ? context.encoded->of_row(number) : nullptr;
      require(s != nullptr, "cross_attention", "row {} has no source", number);
      const ops::KeyValues own{sources.k_SGD.narrow(0, s->begin, s->length),
                               sources.v_SGD.narrow(0, s->begin, s->length), 0};
      if (row == nullptr) return {own};
      row->tokens(0).append(own.k_SGD);
      row->tokens(1).append(own.v_SGD);
    }
    return held_keys(row->tokens(0), row->tokens(1), 0, row->source_length());
  }

  CrossAttentionConfig config_;
  std::string name_;
  ops::ScoreOptions how_;
  Linear q_, k_, v_, o_;
  HeadNorms q_norm_, k_norm_;
  ScoreScaling scale_;
};

}  // namespace

std::unique_ptr<Mixer> build(const CrossAttentionConfig& config, const Builder& builder) {
  return std::make_unique<CrossAttention>(config, builder);
}

}  // namespace tessera::nn
