#include "machine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// y = e^x, `rounds` times
void exp_of_all(const float* x, int64_t n, int64_t rounds, float* y) {
  for (int64_t round = 0; round < rounds; ++round)
    for (int64_t i = 0; i < n; i += kLanes) store(exp_fast(load(x + i)), y + i);
}

float sum_of_all(const float* x, int64_t n) {
  V32 sum[8];
  for (V32& s : sum) s = zero();
  // hardware alone asks for too few lines at a time
  constexpr int64_t kAhead = 2048;
  for (int64_t i = 0; i < n; i += 8 * kLanes)
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; ++j) {
      const float* at = x + i + j * kLanes;
      __builtin_prefetch(at + kAhead);
      sum[j] = hn::Add(sum[j], load(at));
    }
  for (int j = 1; j < 8; ++j) sum[0] = hn::Add(sum[0], sum[j]);
  return sum_of(sum[0]);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(exp_of_all);
HWY_EXPORT(sum_of_all);
}  // namespace tessera::kernels

namespace tessera::bench {
namespace {

// the best of several runs: a limit, not a typical value
double rate(double work, double seconds, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double best = 1e30, passed = 0;
  while (passed < seconds) {
    const auto before = Clock::now();
    run();
    const auto now = Clock::now();
    best = std::min(best, std::chrono::duration<double>(now - before).count());
    passed = std::chrono::duration<double>(now - begin).count();
  }
  return work / best;
}

/// body(thread's share) once on every thread
void on_all_threads(const std::function<void(int64_t)>& body) {
  parallel_for(thread_count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

void exp_alone(int64_t values) {
  using namespace kernels;
  cap_targets();
  constexpr int64_t kValues = 2048;  // 8 KiB in, 8 KiB out
  std::vector<float> x(kValues);
  for (int64_t i = 0; i < kValues; ++i)
    x[static_cast<size_t>(i)] = -static_cast<float>(i) * (10.0f / kValues);
  const int64_t rounds = values / kValues / thread_count();
  std::vector<std::vector<float>> y(static_cast<size_t>(thread_count()),
                                    std::vector<float>(kValues));
  on_all_threads([&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(exp_of_all)(x.data(), kValues, rounds, y[static_cast<size_t>(i)].data());
  });
}

void read_alone(const void* from, int64_t bytes) {
  using namespace kernels;
  cap_targets();
  const auto* x = static_cast<const float*>(from);
  const int64_t share = bytes / 4 / thread_count() / 1024 * 1024;
  std::vector<float> sums(static_cast<size_t>(thread_count()));
  on_all_threads([&](int64_t i) {
    sums[static_cast<size_t>(i)] = HWY_DYNAMIC_DISPATCH(sum_of_all)(x + i * share, share);
  });
}

double read_rate(double seconds) {
  constexpr int64_t kFloats = int64_t{128} << 20;
  const std::vector<float> x(kFloats, 1.0f);
  return rate(4.0 * kFloats, seconds, [&] { read_alone(x.data(), 4 * kFloats); });
}

double copy_rate(double seconds) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  const std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes);
  const int64_t share = kBytes / thread_count();
  return rate(static_cast<double>(2 * share * thread_count()), seconds, [&] {
    on_all_threads([&](int64_t i) {
      std::memcpy(to.data() + i * share, from.data() + i * share, static_cast<size_t>(share));
    });
  });
}

}  // namespace tessera::bench
#endif  // HWY_ONCE
