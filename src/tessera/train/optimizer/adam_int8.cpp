#include "tessera/train/optimizer/adam_int8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace tessera::train {
namespace {

/// Bytes of numbers by the upper half of their bits: no two borders between neighbours in the table
/// have the same one, so that one comparison with the next border tells.
class Codes {
 public:
  explicit Codes(bool with_sign) {
    // exponents 10^0 .. 10^-6; each has twice as many fractions as the next smaller one
    std::vector<double> values{0, 1};
    constexpr int kExponents = 7;
    for (int i = 0; i < kExponents; ++i) {
      const int fractions = with_sign ? 1 << i : 1 << (i + 1);
      const double size = std::pow(10.0, i - (kExponents - 1));
      for (int f = 0; f < fractions; ++f) {
        const double low = 0.1 + 0.9 * f / fractions, high = 0.1 + 0.9 * (f + 1) / fractions;
        values.push_back(size * (low + high) / 2);
        if (with_sign) values.push_back(-size * (low + high) / 2);
      }
    }
    std::sort(values.begin(), values.end());
    std::copy(values.begin(), values.end(), table_.begin());
    for (size_t i = 0; i < 255; ++i) borders_[i] = 0.5F * (table_[i] + table_[i + 1]);
    borders_[255] = 2;
    for (uint32_t upper = 0; upper < cells_.size(); ++upper) {
      const float a = std::bit_cast<float>(upper << 16),
                  b = std::bit_cast<float>((upper << 16) | 0xffffU);
      const float least = std::isnan(a) || std::isnan(b) ? 0 : std::min(a, b);
      cells_[upper] = static_cast<uint8_t>(
          std::lower_bound(borders_.begin(), borders_.end() - 1, least) - borders_.begin());
    }
  }
  std::span<const float> table() const { return table_; }
  float value(uint8_t code) const { return table_[code]; }
  uint8_t nearest(float x) const {
    const uint8_t code = cells_[std::bit_cast<uint32_t>(x) >> 16];
    return static_cast<uint8_t>(code + (x > borders_[code] ? 1 : 0));
  }

 private:
  std::array<float, 256> table_{}, borders_{};
  std::array<uint8_t, 65536> cells_{};
};

const Codes& codes(bool with_sign) {
  static const Codes with(true), without(false);
  return with_sign ? with : without;
}

template <bool kCoupled>
void int8_block(float* __restrict w,
                const float* __restrict g,
                float* __restrict m,
                float* __restrict v,
                int64_t n,
                const AdamConstants& c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = kCoupled ? g[i] * c.scale + c.decay * w[i] : g[i] * c.scale;
    m[i] = c.beta1 * m[i] + c.rest1 * gradient;
    v[i] = c.beta2 * v[i] + c.rest2 * gradient * gradient;
    w[i] = c.keep * w[i] - c.rate * m[i] / (std::sqrt(v[i]) * c.root + c.eps);
  }
}

}  // namespace

std::span<const float> dynamic_table(bool with_sign) {
  return codes(with_sign).table();
}

void pack_block(std::span<const float> values, bool with_sign, uint8_t* bytes, float& scale) {
  const Codes& table = codes(with_sign);
  scale = 0;
  for (const float value : values) scale = std::max(scale, std::fabs(value));
  const float by = scale > 0 ? 1 / scale : 0;
  for (size_t i = 0; i < values.size(); ++i)
    bytes[i] = table.nearest(std::clamp(values[i] * by, -1.0F, 1.0F));
}

void unpack_block(const uint8_t* bytes, float scale, bool with_sign, std::span<float> values) {
  const Codes& table = codes(with_sign);
  for (size_t i = 0; i < values.size(); ++i) values[i] = table.value(bytes[i]) * scale;
}

AdamInt8::AdamInt8(std::vector<ParameterInfo> slots, AdamWSettings settings)
    : slots_(std::move(slots)), settings_(settings), pieces_(slots_) {
  for (const ParameterInfo& slot : slots_)
    for (auto* kept : {&m_, &v_}) {
      const bool with_sign = kept == &m_;
      const auto n = static_cast<size_t>(slot.elements());
      kept->push_back({std::vector<uint8_t>(n, codes(with_sign).nearest(0)),
                       std::vector<float>((n + kBlock - 1) / kBlock)});
    }
}

void AdamInt8::update(std::span<const Parameter> parameters, const Step& step) {
  // pieces are whole blocks
  pieces_.each(parameters, [&](const ElementChunks::Piece& piece) {
    const AdamConstants c(settings_, step, slots_[piece.slot]);
    const Parameter& parameter = parameters[piece.slot];
    Packed &m = m_[piece.slot], &v = v_[piece.slot];
    std::array<float, kBlock> first{}, second{};
    const auto block = settings_.coupled ? int8_block<true> : int8_block<false>;
    for (int64_t begin = piece.begin; begin < piece.end; begin += kBlock) {
      const int64_t n = std::min(kBlock, piece.end - begin);
      const auto number = static_cast<size_t>(begin / kBlock);
      const std::span<float> some(first.data(), static_cast<size_t>(n)),
          others(second.data(), static_cast<size_t>(n));
      unpack_block(m.bytes.data() + begin, m.scales[number], true, some);
      unpack_block(v.bytes.data() + begin, v.scales[number], false, others);
      block(parameter.weight + begin, parameter.gradient + begin, first.data(), second.data(), n,
            c);
      pack_block(some, true, m.bytes.data() + begin, m.scales[number]);
      pack_block(others, false, v.bytes.data() + begin, v.scales[number]);
    }
  });
}

std::vector<RuleState> AdamInt8::state() {
  std::vector<RuleState> out;
  for (size_t s = 0; s < slots_.size(); ++s)
    for (const auto& [what, kept] : {std::pair{"first_moment", &m_}, {"second_moment", &v_}}) {
      Packed& packed = (*kept)[s];
      const std::string name = std::string(what) + "." + slots_[s].name;
      out.push_back(
          {name, slots_[s].name, {std::ssize(packed.bytes)}, DType::u8, packed.bytes.data()});
      out.push_back({name + ".scales",
                     slots_[s].name,
                     {std::ssize(packed.scales)},
                     DType::f32,
                     packed.scales.data()});
    }
  return out;
}

}  // namespace tessera::train
