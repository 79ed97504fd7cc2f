#include "tessera/train/optimizer/schedule_free.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

struct FreeConstants {
  float beta2, rest2, root, eps, decay, scale, share, along, rate;
};

void free_range(float* __restrict y,
                const float* __restrict g,
                float* __restrict z,
                float* __restrict v,
                int64_t n,
                const FreeConstants c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.scale;
    const float second = c.beta2 * v[i] + c.rest2 * gradient * gradient;
    v[i] = second;
    const float d = gradient / (std::sqrt(second) * c.root + c.eps) + c.decay * y[i];
    y[i] += c.share * (z[i] - y[i]) + c.along * d;
    z[i] -= c.rate * d;
  }
}

}  // namespace

ScheduleFree::ScheduleFree(std::vector<ParameterInfo> slots,
                           ScheduleFreeSettings settings,
                           std::span<const Parameter> weights)
    : slots_(std::move(slots)),
      settings_(settings),
      pieces_(slots_),
      z_("free", pieces_),
      v_("second_moment", pieces_) {
  for (size_t s = 0; s < slots_.size(); ++s)
    std::copy_n(weights[s].weight, slots_[s].elements(), z_.at(s));
}

void ScheduleFree::update(std::span<const Parameter> parameters, const Step& step) {
  sums_[1] = std::max(sums_[1], step.lr);
  const double weight = std::pow(sums_[1], settings_.weight_power);
  sums_[0] += weight;
  // nothing changes before the first rate above 0
  const double share = sums_[0] > 0 ? weight / sums_[0] : 0;
  pieces_.each(parameters, [&](const ElementChunks::Piece& piece) {
    const ParameterInfo& slot = slots_[piece.slot];
    const double lr = step.lr * slot.lr_factor;
    const FreeConstants c{
        .beta2 = static_cast<float>(settings_.beta2),
        .rest2 = static_cast<float>(1 - settings_.beta2),
        .root = static_cast<float>(
            1 / std::sqrt(1 - std::pow(settings_.beta2, static_cast<double>(step.t)))),
        .eps = static_cast<float>(settings_.eps),
        .decay = static_cast<float>(slot.weight_decay),
        .scale = static_cast<float>(step.scale),
        .share = static_cast<float>(share),
        .along = static_cast<float>(lr * (settings_.beta1 * (1 - share) - 1)),
        .rate = static_cast<float>(lr),
    };
    free_range(parameters[piece.slot].weight + piece.begin,
               parameters[piece.slot].gradient + piece.begin, z_.at(piece), v_.at(piece),
               piece.end - piece.begin, c);
  });
}

std::vector<RuleState> ScheduleFree::state() {
  std::vector<RuleState> out;
  z_.append(slots_, out);
  v_.append(slots_, out);
  out.push_back({"schedule_free.sums", "", {2}, DType::f64, sums_});
  return out;
}

void ScheduleFree::to_average(size_t slot, float* weights) const {
  const float* z = z_.at(slot);
  const auto share = static_cast<float>(1 - 1 / settings_.beta1);
  for (int64_t i = 0; i < slots_[slot].elements(); ++i) weights[i] += share * (z[i] - weights[i]);
}

}  // namespace tessera::train
