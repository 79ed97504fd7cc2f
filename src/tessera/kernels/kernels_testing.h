// What the kernel tests share: inputs, every target in turn, comparison with double references.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/targets.h"

namespace tessera::kernels {

inline size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

/// n normal values times scale, at `offset` floats after an aligned address: offset 1 is
/// misaligned.
class Values {
 public:
  explicit Values(int64_t n, uint64_t seed = 1, double scale = 1, int64_t offset = 0)
      : data_(at(n + offset + 16)), offset_(16 - alignment() + offset), n_(n) {
    const RandomKey key(seed);
    for (int64_t i = 0; i < n; ++i)
      data()[i] = static_cast<float>(scale * key.normal(static_cast<uint64_t>(i)));
  }
  float* data() { return data_.data() + offset_ % 16; }
  const float* data() const { return data_.data() + offset_ % 16; }
  float& operator[](int64_t i) { return data()[i]; }
  float operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return n_; }

 private:
  int64_t alignment() const {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data_.data()) / 4 % 16);
  }
  std::vector<float> data_;
  int64_t offset_, n_;
};

/// Runs body once on every target that this processor has.
template <class Body>
void on_every_target(const Body& body) {
  for (const std::string& name : available_targets()) {
    SCOPED_TRACE(name);
    const TargetScope scope(name);
    body();
  }
}

/// Restores the thread count.
class Threads {
 public:
  explicit Threads(int n) : before_(thread_count()) { set_thread_count(n); }
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

inline void expect_near(
    const float* got, const double* want, int64_t n, double relative, double absolute) {
  for (int64_t i = 0; i < n; ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    ASSERT_LE(error, relative * std::abs(want[i]) + absolute)
        << "element " << i << ": " << got[i] << " " << want[i];
  }
}

/// Bit for bit; reports the first difference.
inline void expect_same_bits(const float* a, const float* b, int64_t n, const std::string& what) {
  for (int64_t i = 0; i < n; ++i)
    ASSERT_EQ(std::memcmp(a + i, b + i, sizeof(float)), 0)
        << what << ", element " << i << ": " << a[i] << " " << b[i];
}

/// gen(n; a, b) of the specifications: element i is sin(a i + b).
inline std::vector<float> sines(int64_t n, double a, double b) {
  std::vector<float> values(at(n));
  for (int64_t i = 0; i < n; ++i)
    values[at(i)] = static_cast<float>(std::sin(a * static_cast<double>(i) + b));
  return values;
}

inline const std::vector<int64_t>& odd_sizes() {
  static const std::vector<int64_t> sizes{1, 7, 8, 9, 63, 64, 65, 1000};
  return sizes;
}

}  // namespace tessera::kernels
