#include "tessera/train/optimizer/noise_scale.h"

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr double kMeasureDecay = 0.95;

}  // namespace

void NoiseScale::add(const std::vector<Small>& small, double square, double tokens) {
  double squares = 0, inverse = 0, n = 0;
  for (const Small& one : small) {
    if (one.tokens <= 0) continue;
    squares += one.square;
    inverse += 1 / one.tokens;
    ++n;
  }
  if (n < 2) return;
  const double noise = (squares / n - square) / (inverse / n - 1 / tokens);
  noise_ = kMeasureDecay * noise_ + noise;
  signal_ = kMeasureDecay * signal_ + square - noise / tokens;
}

std::optional<double> NoiseScale::value() const {
  if (!(signal_ > 0) || !(noise_ >= 0)) return std::nullopt;
  return noise_ / signal_;
}

spec::Json NoiseScale::to_json() const {
  return {{"noise", noise_}, {"signal", signal_}};
}

void NoiseScale::restore(const spec::Json& json, const std::string& where) {
  if (json.is_null()) return;
  const auto number = [&](const char* key) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number())
      fail(ErrorKind::file, "checkpoint", "{}: \"noise_scale.{}\" is missing or no number", where,
           key);
    return json[key].get<double>();
  };
  noise_ = number("noise");
  signal_ = number("signal");
}

}  // namespace tessera::train
