// Rotary schemes other than "rope": p-RoPE, xPos, and positions in three axes.
#include <cmath>

#include "tessera/nn/parts.h"
#include "tessera/nn/position/m_rope.h"
#include "tessera/nn/position/p_rope.h"
#include "tessera/nn/position/rotary.h"
#include "tessera/nn/position/xpos.h"

namespace tessera::nn {
namespace {

template <class C>
std::string key_of(const char* name, const C& config, int64_t width) {
  return fmt::format("{} {} {}", name, width, spec::dump_struct(config).dump());
}

class PRope final : public Rotary {
 public:
  explicit PRope(const PRopeConfig& config) : config_(config) {}

  Rotation rotation(Side, int64_t width, at::ScalarType type, Context& context) const override {
    const std::string key = key_of("p_rope", config_, width);
    const auto& table = context.once<ops::RotaryTable>(key, [&] {
      return rotary_table(context.batch->positions_N, config_.frequencies(width), 1, type, context,
                          key);
    });
    return {&table, config_.layout == RopeLayout::interleaved};
  }

 private:
  PRopeConfig config_;
};

class Xpos final : public Rotary {
 public:
  explicit Xpos(const XposConfig& config) : config_(config) {}

  Rotation rotation(Side side,
                    int64_t width,
                    at::ScalarType type,
                    Context& context) const override {
    const std::string key = key_of(side == Side::query ? "xpos q" : "xpos k", config_, width);
    const auto& table = context.once<ops::RotaryTable>(
        key, [&] { return make_table(context.batch->positions_N, width, side, type); });
    return {&table, config_.layout == RopeLayout::interleaved};
  }

 private:
  ops::RotaryTable make_table(const Tensor& positions_N,
                              int64_t width,
                              Side side,
                              at::ScalarType type) const {
    const auto turned =
        ops::rotary_table(positions_N, plain_frequencies(config_.theta, width), 1, at::kDouble);
    const std::vector<double> zeta = XposConfig::fading(width);
    const Tensor positions = positions_N.to(at::kCPU).contiguous();
    const int64_t n = positions.numel(), pairs = width / 2;
    const double sign = side == Side::query ? 1 : -1;
    Tensor factor_NR = at::empty({n, pairs}, at::kDouble);
    auto* out = factor_NR.data_ptr<double>();
    for (int64_t i = 0; i < n; ++i) {
      const double p = sign * static_cast<double>(positions.const_data_ptr<int64_t>()[i]);
      for (int64_t m = 0; m < pairs; ++m)
        *out++ = std::pow(zeta[static_cast<size_t>(m)], p / config_.scale_base);
    }
    const Tensor factor = factor_NR.to(positions_N.device());
    return {(turned.cos_NR * factor).to(type), (turned.sin_NR * factor).to(type)};
  }

  XposConfig config_;
};

class MRope final : public Rotary {
 public:
  explicit MRope(const MRopeConfig& config) : config_(config) {}

  Rotation rotation(Side, int64_t width, at::ScalarType type, Context& context) const override {
    const std::string key = key_of("m_rope", config_, width);
    const auto& table =
        context.once<ops::RotaryTable>(key, [&] { return make_table(context, width, type, key); });
    return {&table, false};
  }

 private:
  ops::RotaryTable make_table(Context& context,
                              int64_t width,
                              at::ScalarType type,
                              const std::string& key) const {
    const Batch& batch = *context.batch;
    const std::vector<double> omega = plain_frequencies(config_.theta, width);
    if (!batch.axes_3N.defined())  // text
      return rotary_table(batch.positions_N, omega, 1, type, context, key);
    if (batch.axes_3N.dim() != 2 || batch.axes_3N.size(0) != 3 ||
        batch.axes_3N.size(1) != batch.n_tokens())
      fail(ErrorKind::input, "m_rope", "positions of shape [{}]; expected [3, {}]",
           fmt::join(batch.axes_3N.sizes(), ", "), batch.n_tokens());
    std::vector<ops::RotaryTable> of_axis;
    for (int64_t axis = 0; axis < 3; ++axis)
      of_axis.push_back(ops::rotary_table(batch.axes_3N[axis], omega, 1, type));
    std::vector<Tensor> cosines, sines;
    const std::vector<int64_t> axes = config_.axis_of_pair();
    for (size_t m = 0; m < axes.size(); ++m) {
      const ops::RotaryTable& table = of_axis[static_cast<size_t>(axes[m])];
      cosines.push_back(table.cos_NR.select(1, static_cast<int64_t>(m)));
      sines.push_back(table.sin_NR.select(1, static_cast<int64_t>(m)));
    }
    return {at::stack(cosines, 1), at::stack(sines, 1)};
  }

  MRopeConfig config_;
};

}  // namespace

std::unique_ptr<Position> build(const PRopeConfig& config, const Builder&) {
  return std::make_unique<PRope>(config);
}
std::unique_ptr<Position> build(const XposConfig& config, const Builder&) {
  return std::make_unique<Xpos>(config);
}
std::unique_ptr<Position> build(const MRopeConfig& config, const Builder&) {
  return std::make_unique<MRope>(config);
}

}  // namespace tessera::nn
