#include "tessera/nn/mixer/attention/merged_attention.h"

#include <memory>

#include "tessera/nn/dropout.h"
#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/head_norms.h"
#include "tessera/nn/mixer/attention/score_scaling.h"
#include "tessera/nn/pattern/sink_window.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

/// A window over tokens that follow `source` keys which every query sees.
struct BehindSource {
  BehindSource(int64_t source, int64_t width, PatternSite site) : seen(pattern, std::move(site)) {
    pattern.first = source;
    pattern.width = width;
  }
  SinkWindowPatternConfig pattern;
  PatternVisibility seen;
};

class MergedAttention final : public Mixer {
 public:
  MergedAttention(const MergedAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        layer_(builder.scope().layer),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        q_norm_(builder, "q_norm", config, config.n_heads),
        k_norm_(builder, "k_norm", config, config.n_kv_heads),
        scale_(builder, config, config.head_dim),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        mask_(builder, config.pattern, config.n_heads) {
    how_.scale = scale_.on_logits();
    how_.softcap = config.softcap;
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    if (context.split.ranks > 1 && !ops::documents_apart(x_ND))
      fail(ErrorKind::spec, name_,
           "merged_attention is not split over ranks; expected one rank for a sequence");
    const ops::SharedInput shared(x_ND);
    const Tensor q_NHD = position_->rotate(scale_.learned(q_norm_(q_(shared, context), context.products)),
                                           Side::query, context),
                 k_NGD = position_->rotate(k_norm_(k_(shared, context), context.products),
                                           Side::key, context),
                 v_NGD = values(shared, context.products);
    // of all sources that this call brings
    ops::KeyValues sources;
    if (context.encoded != nullptr) {
      const ops::SharedInput e_SD(context.encoded->x_SD);
      const ops::ProductSettings of_sources =
          context.products.with(input_drop(context, context.encoded->source));
      sources = {k_norm_(k_(e_SD, of_sources), of_sources), values(e_SD, of_sources), 0};
    }
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    std::vector<PatternMask::Past> pasts;
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
      std::vector<ops::KeyValues> kv = source_of(s.row, row, sources, context);
      const int64_t source = length_of(kv);
      // the decoder's tokens follow the source
      const auto follow = [&](ops::KeyValues own) {
        own.first += source;
        kv.push_back(std::move(own));
      };
      const ops::KeyValues own{part(k_NGD, i), part(v_NGD, i), s.start};
      if (row != nullptr) {
        pasts.push_back(mask_.past(own, row->tokens(0), &row->tokens(1)));
        for (const ops::KeyValues& held : pasts.back().kv) follow(held);
      } else {
        follow(own);
      }
      ops::ScoreOptions how = dropout.in(how_, s);
      how.products = context.products.type;
      if (const int64_t width = config_.pattern_config().horizon(); width > 0) {
        const auto behind = std::make_shared<BehindSource>(
            source, width,
            PatternSite{layer_, config_.n_heads, source + s.start + s.length, true, s.prefix, {}});
        how.visibility = {behind, &behind->seen};
      }
      calls.push_back({part(q_NHD, i), std::move(kv), source + s.start, std::move(how)});
    }
    const Tensor o_NHD = ops::attention(calls);
    for (PatternMask::Past& past : pasts) past.keep();
    return o_(o_NHD.reshape({x_ND.size(0), -1}), context);
  }

 private:
  Tensor values(const ops::SharedInput& x_ND, const ops::ProductSettings& products) const {
    return v_(x_ND, products)
        .reshape({x_ND.tensor().size(0), config_.n_kv_heads, config_.head_dim});
  }
  static int64_t length_of(const std::vector<ops::KeyValues>& kv) {
    int64_t length = 0;
    for (const ops::KeyValues& part : kv) length += part.k_SGD.size(0);
    return length;
  }

  /// Keys and values of a row's source: those that its state holds, else out of `sources`, which
  /// the state then keeps.
  std::vector<ops::KeyValues> source_of(int64_t number,
                                        RowState* row,
                                        const ops::KeyValues& sources,
                                        const Context& context) const {
    if (row == nullptr || row->source_length() == 0) {
      const Segment* s = context.encoded != nullptr ? context.encoded->of_row(number) : nullptr;
      require(s != nullptr, "merged_attention", "row {} has no source", number);
      const ops::KeyValues own{sources.k_SGD.narrow(0, s->begin, s->length),
                               sources.v_SGD.narrow(0, s->begin, s->length), 0};
      if (row == nullptr) return {own};
      row->tokens(2).append(own.k_SGD);
      row->tokens(3).append(own.v_SGD);
    }
    return held_keys(row->tokens(2), row->tokens(3), 0, row->source_length());
  }

  MergedAttentionConfig config_;
  std::string name_;
  int64_t layer_;
  ops::ScoreOptions how_;
  Linear q_, k_, v_, o_;
  HeadNorms q_norm_, k_norm_;
  ScoreScaling scale_;
  std::unique_ptr<Position> position_;
  PatternMask mask_;
};

}  // namespace

std::unique_ptr<Mixer> build(const MergedAttentionConfig& config, const Builder& builder) {
  return std::make_unique<MergedAttention>(config, builder);
}

}  // namespace tessera::nn
