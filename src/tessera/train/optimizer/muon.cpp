#include "tessera/train/optimizer/muon.h"

#include <cmath>

#include "tessera/ops/weights/product.h"

namespace tessera::train {
namespace {

/// X / |X| for each matrix; norms are summed in a fixed order for any number of threads.
void normalise(Tensor& x) {
  if (!x.is_cpu()) {
    x.div_(at::linalg_vector_norm(x, 2, std::vector<int64_t>{1, 2}, true, at::kDouble)
               .clamp_min(1e-7));
    return;
  }
  const int64_t matrices = x.size(0), n = x.size(1) * x.size(2);
  float* all = x.mutable_data_ptr<float>();
  parallel_for(matrices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* values = all + i * n;
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += static_cast<double>(values[k]) * values[k];
      const auto by = static_cast<float>(1 / std::max(std::sqrt(sum), 1e-7));
      for (int64_t k = 0; k < n; ++k) values[k] *= by;
    }
  });
}

}  // namespace

double muon_scale(MuonScale scale, const ParameterInfo& slot) {
  const auto rows = static_cast<double>(slot.rows()), columns = static_cast<double>(slot.columns());
  switch (scale) {
    case MuonScale::original:
      return std::sqrt(std::max(1.0, rows / columns));
    case MuonScale::match_rms_adamw:
      return 0.2 * std::sqrt(std::max(rows, columns));
    case MuonScale::spectral:
      return std::sqrt(rows / columns);
  }
  fail(ErrorKind::internal, "muon", "unknown scale");
}

Tensor orthogonalised(const Tensor& u, int64_t iterations) {
  const at::NoGradGuard no_gradients;
  const bool tall = u.size(-2) > u.size(-1);
  Tensor x = (tall ? u.transpose(-2, -1) : u)
                 .reshape({-1, std::min(u.size(-2), u.size(-1)), std::max(u.size(-2), u.size(-1))})
                 .clone(at::MemoryFormat::Contiguous);
  normalise(x);
  for (int64_t i = 0; i < iterations; ++i) {
    const Tensor a = ops::product(x, x.transpose(-2, -1));
    const Tensor b = ops::product(a, a).mul_(2.0315).add_(a, -4.7750);
    x = ops::product(b, x).add_(x, 3.4445);
  }
  return (tall ? x.transpose(-2, -1) : x).reshape(u.sizes());
}

Muon::Muon(std::vector<ParameterInfo> slots, MuonKeys keys)
    : slots_(std::move(slots)), keys_(std::move(keys)), pieces_(slots_), b_("momentum", pieces_) {}

void Muon::update(std::span<const Parameter> parameters, const Step& step) {
  const auto mu = static_cast<float>(keys_.momentum), scale = static_cast<float>(step.scale);
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (parameters[s].gradient == nullptr) continue;
    const ParameterInfo& slot = slots_[s];
    const int64_t n = slot.elements();
    const float* g = parameters[s].gradient;
    float *b = b_.at(s), *w = parameters[s].weight;
    Tensor u = at::empty(slot.shape, at::kFloat);
    float* direction = u.mutable_data_ptr<float>();
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float fresh = (1 - mu) * (g[i] * scale);
        b[i] = mu * b[i] + fresh;
        direction[i] = keys_.nesterov ? fresh + mu * b[i] : b[i];
      }
    });
    const Tensor o = orthogonalised(u, keys_.iterations).contiguous();
    const double lr = step.lr * slot.lr_factor;
    const auto keep = static_cast<float>(1 - lr * slot.weight_decay),
               rate = static_cast<float>(lr * muon_scale(keys_.scale, slot));
    const float* along = o.const_data_ptr<float>();
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) w[i] = keep * w[i] - rate * along[i];
    });
  }
}

std::vector<RuleState> Muon::state() {
  std::vector<RuleState> out;
  b_.append(slots_, out);
  return out;
}

}  // namespace tessera::train
