// Random integers, choices and permutations from a random stream. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/base/rng.h"

namespace tessera::train {

/// Uniform in 0 .. n - 1, for n up to 2^32.
inline int64_t below(const RandomKey& key, uint64_t index, int64_t n) {
  return static_cast<int64_t>(uint64_t{key.bits(index)} * static_cast<uint64_t>(n) >> 32);
}

/// Uniform in [0, 1), 32 bits.
inline double unit(const RandomKey& key, uint64_t index) {
  return static_cast<double>(key.bits(index)) * 0x1p-32;
}

/// The first k elements of a uniform permutation of 0 .. n - 1.
std::vector<int64_t> shuffled(const RandomKey& key, int64_t n, int64_t k);
inline std::vector<int64_t> shuffled(const RandomKey& key, int64_t n) {
  return shuffled(key, n, n);
}

/// k of 0 .. n - 1 without replacement, ascending.
std::vector<int64_t> choice(const RandomKey& key, int64_t n, int64_t k);

/// The Poisson quantile of `u` in [0, 1) for that mean.
int64_t poisson(double mean, double u);

}  // namespace tessera::train
