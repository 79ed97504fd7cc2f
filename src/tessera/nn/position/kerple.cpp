#include "tessera/nn/position/kerple.h"

#include <cmath>

#include "tessera/nn/position/relative.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

class Kerple final : public Position {
 public:
  Kerple(const KerpleConfig& config, const Builder& builder)
      : log_(config.kernel == KerpleKernel::log),
        factor_(builder.weight(log_ ? "r1" : "a")),
        shape_(builder.weight(log_ ? "r2" : "p")) {}

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    const auto range = DistanceRange::of(site, context);
    const Tensor factor_H = factor_->tensor(), shape_H = shape_->tensor();
    return {.bias_HR = ops::kernel_serves(ops::Op::kerple, factor_H)
                           ? numbers(factor_H, shape_H, range)
                           : plain(factor_H, shape_H, range),
            .zero = range.past};
  }

 private:
  static constexpr double kLeast = KerpleConfig::kLeast, kMost = KerpleConfig::kGreatestPower;

  Tensor plain(const Tensor& factor_H, const Tensor& shape_H, const DistanceRange& range) const {
    const auto type = ops::wide(factor_H);
    const Tensor factor = factor_H.to(type).clamp_min(kLeast).unsqueeze(1);
    const Tensor shape = shape_H.to(type).clamp_min(kLeast).unsqueeze(1);
    const Tensor distance_R = at::arange(-range.past, range.future + 1, factor.options()).abs();
    if (log_) return -factor * at::log1p(shape * distance_R);
    return -factor * at::pow(distance_R, shape.clamp_max(kMost));
  }

  /// The same, one by one: an element's bits depend on its distance alone.
  Tensor numbers(const Tensor& factor_H, const Tensor& shape_H, const DistanceRange& range) const {
    const int64_t heads = factor_H.size(0);
    Tensor bias_HR = at::empty({heads, range.rows()}, at::kFloat);
    auto* out = bias_HR.data_ptr<float>();
    for (int64_t h = 0; h < heads; ++h) {
      const double factor = std::max(kLeast, factor_H[h].item<double>());
      const double shape = std::max(kLeast, shape_H[h].item<double>());
      for (int64_t d = -range.past; d <= range.future; ++d) {
        const auto distance = static_cast<double>(std::abs(d));
        *out++ = static_cast<float>(-factor * (log_ ? std::log1p(shape * distance)
                                                    : std::pow(distance, std::min(kMost, shape))));
      }
    }
    return bias_HR;
  }

  bool log_;
  WeightPtr factor_, shape_;
};

}  // namespace

std::unique_ptr<Position> build(const KerpleConfig& config, const Builder& builder) {
  return std::make_unique<Kerple>(config, builder);
}

}  // namespace tessera::nn
