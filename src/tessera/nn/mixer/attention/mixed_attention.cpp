#include "tessera/nn/mixer/attention/mixed_attention.h"

#include <cmath>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/convolution/grouped_conv.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

class MixedAttention final : public Mixer {
 public:
  MixedAttention(const MixedAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        span_(builder, "span"),
        taps_(builder, "taps"),
        u_(builder, "u"),
        o_(builder, "o"),
        span_conv_(builder.under("span_conv"), builder.scope().d_model) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const ops::SharedInput shared(x_ND);
    const Tensor q_NE = q_(shared, context);
    const Tensor a_NE = attended(q_NE, shared, context);
    // taps of every token and head
    const Tensor span_NE = span_(span_conv_(x_ND, context, nullptr), context);
    const Tensor w_NHK =
        ops::softmax(taps_(span_NE * q_NE, context).reshape({x_ND.size(0), config_.n_heads, -1}));
    const Tensor u_NHD = heads(u_(shared, context));
    const BySegment part(*context.batch);
    const Tensor c_NHD = over_segments(*context.batch, [&](size_t i, const Segment&) {
      return convolved(part(u_NHD, i), part(w_NHK, i));
    });
    return o_(at::cat({a_NE, c_NHD.reshape(a_NE.sizes())}, -1), context);
  }

 private:
  Tensor heads(const Tensor& x_NE) const {
    return x_NE.reshape({x_NE.size(0), config_.n_heads, config_.head_dim});
  }

  Tensor attended(const Tensor& q_NE, const ops::SharedInput& x_ND, const Context& context) const {
    const Tensor q_NHD = heads(q_NE), k_NHD = heads(k_(x_ND, context)),
                 v_NHD = heads(v_(x_ND, context));
    PatternedScores scores;
    scores.how.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
    scores.how.causal = false;
    return attend_documents(q_NHD, k_NHD, v_NHD, *context.batch, scores,
                            weight_dropout(context, name_, config_.dropout))
        .reshape(q_NE.sizes());
  }

  /// sum_j w_tj u_(t + j - kernel / 2) of one document, tap after tap.
  Tensor convolved(const Tensor& u_THD, const Tensor& w_THK) const {
    const int64_t t = u_THD.size(0), half = config_.kernel / 2;
    const Tensor padded = at::constant_pad_nd(u_THD, {0, 0, 0, 0, half, half});
    const auto term = [&](int64_t tap) {
      const Tensor u = padded.narrow(0, tap, t);
      return u * ops::spread(w_THK.narrow(2, tap, 1), u);
    };
    Tensor sum = term(0);
    for (int64_t tap = 1; tap < config_.kernel; ++tap) sum = sum + term(tap);
    return sum;
  }

  MixedAttentionConfig config_;
  std::string name_;
  Linear q_, k_, v_, span_, taps_, u_, o_;
  GroupedConv span_conv_;
};

}  // namespace

std::unique_ptr<Mixer> build(const MixedAttentionConfig& config, const Builder& builder) {
  return std::make_unique<MixedAttention>(config, builder);
}

}  // namespace tessera::nn
