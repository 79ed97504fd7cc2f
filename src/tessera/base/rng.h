// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). A value is a pure function of a key and a counter. It does not depend on
// threads, on the order of calls, or on earlier draws, so resume and recomputation reproduce it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace tessera {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// FNV-1a; names random sites ("layers.3.ffn.dropout") so that streams never collide by accident.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

/// A stream of random numbers, addressed by element index.
class RandomKey {
 public:
  explicit RandomKey(uint64_t seed) : key_(seed) {}
  /// A derived, independent stream: key.fold(step).fold(hash_name("layers.0.mixer")).
  RandomKey fold(uint64_t value) const {
    const auto r = philox4x32(
        {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32), 0x7e55e3au, 0},
        {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
    return RandomKey((uint64_t{r[1]} << 32) | r[0]);
  }
  RandomKey fold(std::string_view name) const { return fold(hash_name(name)); }

  /// 32 random bits for element `index`.
  uint32_t bits(uint64_t index) const { return block(index / 4)[index % 4]; }
  /// Four values at once: elements 4 * index .. 4 * index + 3.
  std::array<uint32_t, 4> block(uint64_t index) const {
    return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                      {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
  }
  /// Uniform in [0, 1), 24 bits.
  float uniform(uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }
  /// Standard normal by Box-Muller, in double.
  double normal(uint64_t index) const {
    const auto r = block(index);
    const double u = (static_cast<double>(r[0]) + 1.0) * 0x1p-32;
    const double v = static_cast<double>(r[1]) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  uint64_t value() const { return key_; }

 private:
  uint64_t key_;
};

}  // namespace tessera
