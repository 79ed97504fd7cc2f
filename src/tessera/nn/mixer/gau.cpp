#include "tessera/nn/mixer/gau.h"

#include <cmath>

#include "tessera/nn/mixer/attend.h"
#include "tessera/nn/mixer/gau_parts.h"
#include "tessera/ops/unit_attention.h"

namespace tessera::nn {
namespace {

class Gau final : public Mixer {
 public:
  Gau(const GauConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        parts_(builder, config.d_hidden, config.d_key, config.position),
        out_(builder, "out") {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto [u_NE, v_NE, z_NS] = parts_.project(x_ND);
    const Tensor q_NS = parts_.copy(z_NS, 0, context), k_NS = parts_.copy(z_NS, 1, context);
    const Tensor v = v_NE;
    const Tensor mixed_NE = over_segments(*context.batch, [&](size_t i, const Segment& s) {
      const Tensor keys = k_NS.narrow(0, s.begin, s.length).unsqueeze(1),
                   values = v.narrow(0, s.begin, s.length).unsqueeze(1);
      std::vector<ops::KeyValues> kv{{keys, values, 0}};
      if (rows != nullptr) {
        TokenBuffer &held_k = (*rows)[i]->tokens(0), &held_v = (*rows)[i]->tokens(1);
        held_k.append(keys);
        held_v.append(values);
        kv = held_keys(held_k, held_v, 0, held_k.length());
      }
      return attend(q_NS.narrow(0, s.begin, s.length), kv, rows != nullptr ? s.start : 0, s.begin,
                    context);
    });
    return out_(u_NE * mixed_NE);
  }

 private:
  /// One document: its queries from `start` on, and all keys up to them.
  Tensor attend(const Tensor& q_TS,
                const std::vector<ops::KeyValues>& kv,
                int64_t start,
                int64_t segment_begin,
                const Context& context) const {
    if (config_.weights == GauWeights::softmax) {
      const ops::ScoreOptions options{.scale = 1 / std::sqrt(static_cast<double>(config_.d_key)),
                                      .causal = context.causal};
      return ops::attention(q_TS.unsqueeze(1), kv, start, options,
                            weight_dropout(context, name_, config_.dropout).at(segment_begin))
          .squeeze(1);
    }
    // the products below want one matrix
    const auto joined = [&](const auto& side) {
      std::vector<Tensor> parts;
      for (const ops::KeyValues& part : kv) parts.push_back(side(part));
      return (parts.size() == 1 ? parts[0] : at::cat(parts)).squeeze(1);
    };
    const Tensor k_SS = joined([](const ops::KeyValues&part) { return part.k_SGD; }),
                 v_SE = joined([](const ops::KeyValues&part) { return part.v_SGD; });
    const int64_t t = q_TS.size(0);
    const auto options = q_TS.options().dtype(ops::wide(q_TS));
    const bool growing = context.causal && config_.divisor == GauDivisor::count;
    const double n = static_cast<double>(
        config_.divisor == GauDivisor::max_length ? config_.max_length : k_SS.size(0));
    const Tensor divisor =
        growing ? at::arange(start + 1, start + t + 1, options) : at::full({t}, n, options);
    const auto act =
        config_.weights == GauWeights::relu2 ? ops::ScoreAct::relu2 : ops::ScoreAct::laplace;
    if (ops::use_kernels(q_TS))
      return ops::unit_attention_kernel(q_TS, k_SS, v_SE, start, divisor, act, context.causal);
    return ops::unit_attention(q_TS.unsqueeze(0), k_SS.unsqueeze(0), v_SE.unsqueeze(0), start,
                               divisor, act, context.causal)
        .squeeze(0);
  }

  GauConfig config_;
  std::string name_;
  GauParts parts_;
  Linear out_;
};

}  // namespace

std::unique_ptr<Mixer> build(const GauConfig& config, const Builder& builder) {
  return std::make_unique<Gau>(config, builder);
}

}  // namespace tessera::nn
