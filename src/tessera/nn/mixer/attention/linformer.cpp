#include "tessera/nn/mixer/attention/linformer.h"

#include <cmath>
#include <limits>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/weighted_sum.h"

namespace tessera::nn {
namespace {

class Linformer final : public Mixer {
 public:
  Linformer(const LinformerConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        compress_k_(matrices(config, builder).optional("compress_k.weight")),
        compress_v_(matrices(config, builder).optional("compress_v.weight")) {
    if (compress_v_ == nullptr) compress_v_ = compress_k_;
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const int64_t h = config_.n_heads, d = config_.head_dim;
    const Tensor q_NHD = q_(x_ND, context).reshape({x_ND.size(0), h, d});
    const bool tokens_first = config_.order == SlotOrder::compress_then_project;
    const Tensor k_NC = tokens_first ? x_ND : k_(x_ND, context),
                 v_NC = tokens_first ? x_ND : v_(x_ND, context);
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const ops::ScoreOptions options{.scale = 1 / std::sqrt(static_cast<double>(d)),
                                    .causal = false};
    const BySegment part(*context.batch);
    const Tensor o_NHD = over_segments(*context.batch, [&](size_t i, const Segment& s) {
      check_length(s.length);
      Tensor k_KC = compressed(part(k_NC, i), compress_k_, context),
             v_KC = compressed(part(v_NC, i), compress_v_, context);
      if (tokens_first) {
        k_KC = k_(k_KC, context);
        v_KC = v_(v_KC, context);
      }
      const int64_t slots = k_KC.size(0);
      const ops::KeyValues kv{k_KC.reshape({slots, h, d}), v_KC.reshape({slots, h, d}), 0};
      return ops::attention(part(q_NHD, i), {kv}, 0, dropout.in(options, s));
    });
    return o_(o_NHD.reshape({x_ND.size(0), h * d}), context);
  }

 private:
  static Builder matrices(const LinformerConfig& config, const Builder& builder) {
    return config.share == SlotShare::layerwise ? builder.shared(LinformerConfig::kShared)
                                                : builder;
  }
  void check_length(int64_t length) const {
    if (config_.max_length > 0 && length > config_.max_length)
      fail(ErrorKind::input, "linformer",
           "a document of {} tokens; this model was made for max_length = {}: shorten the input",
           length, config_.max_length);
  }

  /// x_TC of one document -> [slots, C].
  Tensor compressed(const Tensor& x_TC, const WeightPtr& weight, const Context& context) const {
    switch (config_.method) {
      case SlotMethod::linear:
        return projected(x_TC, weight->tensor(context.products).narrow(1, 0, x_TC.size(0)));
      case SlotMethod::conv:
        return filtered(x_TC, weight->tensor(context.products));
      case SlotMethod::conv_heads:
        return filtered_by_heads(x_TC, weight->tensor(context.products));
      case SlotMethod::mean:
      case SlotMethod::max:
        break;
    }
    return pooled(x_TC);
  }

  /// E x, or with an E for each head its own channels.
  Tensor projected(const Tensor& x_TC, const Tensor& e_KT) const {
    const Tensor e = e_KT.to(x_TC.device(), ops::wide(x_TC)), x = x_TC.to(ops::wide(x_TC));
    if (config_.share != SlotShare::none) return ops::weighted_sum(e, x).to(x_TC.scalar_type());
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < config_.n_heads; ++h)
      heads.push_back(ops::weighted_sum(e.narrow(0, h * config_.n_slots, config_.n_slots),
                                        x.narrow(1, h * config_.head_dim, config_.head_dim)));
    return at::cat(heads, 1).to(x_TC.scalar_type());
  }

  /// The last run padded with `padding`: [slots, width, C].
  static Tensor runs(const Tensor& x_TC, int64_t width, double padding) {
    const int64_t t = x_TC.size(0), slots = (t + width - 1) / width;
    return at::constant_pad_nd(x_TC.to(ops::wide(x_TC)), {0, 0, 0, slots * width - t}, padding)
        .reshape({slots, width, x_TC.size(1)});
  }

  // Sums are formed token after token: element by element, so that no bits depend on the shape.
  Tensor filtered(const Tensor& x_TC, const Tensor& w_CW) const {
    const Tensor x = runs(x_TC, w_CW.size(1), 0), w = w_CW.to(x.device(), x.scalar_type());
    const auto term = [&](int64_t j) {
      const Tensor x_SC = x.select(1, j);
      return x_SC * ops::spread(w.select(1, j), x_SC);
    };
    Tensor sum = term(0);
    for (int64_t j = 1; j < w.size(1); ++j) sum = sum + term(j);
    return sum.to(x_TC.scalar_type());
  }

  /// Products of each run of a head with the head's filters, w_CDW: rows of their own.
  Tensor filtered_by_heads(const Tensor& x_TC, const Tensor& w_CDW) const {
    const int64_t h = config_.n_heads, d = config_.head_dim, width = w_CDW.size(2);
    const Tensor x_SWC = runs(x_TC, width, 0);
    const int64_t slots = x_SWC.size(0);
    const Tensor x_HSI = x_SWC.reshape({slots, width, h, d})
                             .permute({2, 0, 3, 1})
                             .reshape({h, slots, d * width}),
                 w_HOI = w_CDW.to(x_SWC.device(), x_SWC.scalar_type()).reshape({h, d, d * width});
    return ops::row_products(x_HSI, w_HOI)
        .transpose(0, 1)
        .reshape({slots, h * d})
        .to(x_TC.scalar_type());
  }

  Tensor pooled(const Tensor& x_TC) const {
    const int64_t t = x_TC.size(0), width = (t + config_.n_slots - 1) / config_.n_slots;
    if (config_.method == SlotMethod::max)
      return runs(x_TC, width, -std::numeric_limits<double>::infinity())
          .amax(1)
          .to(x_TC.scalar_type());
    const Tensor x = runs(x_TC, width, 0);
    Tensor sum = x.select(1, 0);
    for (int64_t j = 1; j < width; ++j) sum = sum + x.select(1, j);
    const Tensor counts = at::full({x.size(0), 1}, static_cast<double>(width), x.options());
    counts[-1].fill_(static_cast<double>(t - (x.size(0) - 1) * width));
    return (sum / counts).to(x_TC.scalar_type());
  }

  LinformerConfig config_;
  std::string name_;
  Linear q_, k_, v_, o_;
  WeightPtr compress_k_, compress_v_;
};

}  // namespace

std::unique_ptr<Mixer> build(const LinformerConfig& config, const Builder& builder) {
  return std::make_unique<Linformer>(config, builder);
}

}  // namespace tessera::nn
