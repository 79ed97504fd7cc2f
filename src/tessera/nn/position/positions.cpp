#include "tessera/nn/parts.h"
#include "tessera/nn/position/learned.h"
#include "tessera/nn/position/none.h"
#include "tessera/nn/position/rope.h"
#include "tessera/nn/position/rotary.h"
#include "tessera/nn/position/sinusoidal.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

/// Angles of the tokens of a call. Frequencies may depend on the length of the document, so each
/// segment has its own. Throws Error(input) for one that continues beyond where all angles change.
ops::RotaryTable rope_table(const RopeConfig& config,
                            at::ScalarType type,
                            Context& context,
                            const std::string& key) {
  const Batch& batch = *context.batch;
  if (!config.angles_change()) {
    const RopeFrequencies f = config.frequencies(0);
    return rotary_table(batch.positions_N, f.omega, f.factor, type, context, key);
  }
  std::vector<Tensor> cosines, sines;
  for (const Segment& s : batch.segments) {
    const int64_t end = s.start + s.length;
    if (s.start > 0 && end > config.angles_until(s.start))
      fail(ErrorKind::input, "rope",
           "positions {} to {} exceed length {}, where all angles change; recompute the sequence "
           "from its beginning",
           s.start, end - 1, config.angles_until(s.start));
    const RopeFrequencies f = config.frequencies(end);
    const auto part =
        ops::rotary_table(batch.positions_N.narrow(0, s.begin, s.length), f.omega, f.factor, type);
    cosines.push_back(part.cos_NR);
    sines.push_back(part.sin_NR);
  }
  return {at::cat(cosines), at::cat(sines)};
}

class NoPosition final : public Position {
 public:
  bool only_rotates() const override { return true; }
};

class LearnedPosition final : public Position {
 public:
  LearnedPosition(const LearnedPositionConfig& config, const Builder& builder)
      : config_(config), table_(builder.weight("weight")) {}
  Tensor embed(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const Tensor& positions = context.batch->positions_N;
    if (config_.longer == LongerThanTable::interpolate && context.batch->longest() > config_.rows())
      return x_ND + stretched(context).to(x_ND.scalar_type());
    if (positions.numel() > 0 && ops::on_host(positions)) {
      const int64_t last = positions.max().item<int64_t>();
      if (last >= config_.rows())
        fail(ErrorKind::input, "learned",
             "position {}; this model has {} positions: shorten the input", last, config_.rows());
    }
    return x_ND +
           ops::rows(*table_, positions + config_.offset, context.products).to(x_ND.scalar_type());
  }

 private:
  /// The rows of every document, of one that is longer than the table between its rows.
  Tensor stretched(const Context& context) const {
    const Batch& batch = *context.batch;
    std::vector<Tensor> out;
    for (const Segment& s : batch.segments) {
      Tensor at_N = batch.positions_N.narrow(0, s.begin, s.length).to(at::kDouble);
      const auto rows = static_cast<double>(config_.rows()),
                 length = static_cast<double>(s.start + s.length);
      if (length > rows) at_N = ((at_N + 0.5) * (rows / length) - 0.5).clamp(0, rows - 1);
      const Tensor below = at_N.floor(), part = (at_N - below).unsqueeze(1);
      const Tensor first = below.to(at::kLong) + config_.offset,
                   second = (first + 1).clamp_max(config_.n_positions - 1);
      const Tensor a = ops::rows(*table_, first, context.products),
                   b = ops::rows(*table_, second, context.products);
      out.push_back(a + (b - a) * part.to(a.scalar_type()));
    }
    return at::cat(out);
  }

  LearnedPositionConfig config_;
  WeightPtr table_;
};

class SinusoidalPosition final : public Position {
 public:
  explicit SinusoidalPosition(const SinusoidalPositionConfig& config) : config_(config) {}
  Tensor embed(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const Tensor positions = context.batch->positions_N.to(at::kCPU).contiguous();
    const int64_t n = positions.numel(), width = x_ND.size(1);
    Tensor table = at::empty({n, width}, at::kDouble);
    for (int64_t i = 0; i < n; ++i)
      config_.vector(positions.const_data_ptr<int64_t>()[i], width,
                     table.data_ptr<double>() + i * width);
    return x_ND + table.to(x_ND.device(), x_ND.scalar_type());
  }

 private:
  SinusoidalPositionConfig config_;
};

class Rope final : public Rotary {
 public:
  explicit Rope(const RopeConfig& config)
      : config_(config), key_("rope " + spec::dump_struct(config).dump()) {}

  Rotation rotation(Side, int64_t, at::ScalarType type, Context& context) const override {
    const auto& table = context.once<ops::RotaryTable>(
        key_, [&] { return rope_table(config_, type, context, key_); });
    return {&table, config_.layout == RopeLayout::interleaved};
  }

 private:
  RopeConfig config_;
  std::string key_;
};

}  // namespace

std::unique_ptr<Position> build(const NoPositionConfig&, const Builder&) {
  return std::make_unique<NoPosition>();
}
std::unique_ptr<Position> build(const LearnedPositionConfig& config, const Builder& builder) {
  return std::make_unique<LearnedPosition>(config, builder);
}
std::unique_ptr<Position> build(const SinusoidalPositionConfig& config, const Builder&) {
  return std::make_unique<SinusoidalPosition>(config);
}
std::unique_ptr<Position> build(const RopeConfig& config, const Builder&) {
  return std::make_unique<Rope>(config);
}

}  // namespace tessera::nn
