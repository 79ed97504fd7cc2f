// Products of a training step, float32: kernels::gemm beside libtorch's, in turns, medians.
//   train_products_rows [ROUNDS]
// M tokens through a layer of N outputs and K inputs: x W^T, dy W and dy^T x.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "tessera/kernels/weights/gemm.h"
#include "tessera/ops/tensor.h"

namespace tessera::bench {
namespace {

double seconds(const auto& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// GFLOP/s of both for out = a b.
std::pair<double, double> compare(const Tensor& a, const Tensor& b, int rounds) {
  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  Tensor out = at::empty({m, n});
  const auto theirs = [&] { at::mm_out(out, a, b); };
  const auto ours = [&] {
    kernels::gemm({a.const_data_ptr<float>(), a.stride(0), a.stride(1)},
                  {b.const_data_ptr<float>(), b.stride(0), b.stride(1)}, m, n, k,
                  out.mutable_data_ptr<float>(), n, false);
  };
  std::vector<double> their_times, our_times;
  for (int i = 0; i <= rounds; ++i) {
    const double t = seconds(theirs), o = seconds(ours);
    if (i == 0) continue;
    their_times.push_back(t);
    our_times.push_back(o);
  }
  const double work = 2e-9 * static_cast<double>(m * n * k);
  return {work / median(their_times), work / median(our_times)};
}

void rows(int rounds) {
  fmt::print("| N x K, M tokens | form | libtorch, GFLOP/s | gemm | ratio | taken |\n"
             "|---|---|---|---|---|---|\n");
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{2048, 2304, 768},
                                                                   {2048, 768, 768},
                                                                   {2048, 3072, 768},
                                                                   {2048, 768, 3072},
                                                                   {256, 1024, 384},
                                                                   {2048, 384, 128}}) {
    const Tensor x = at::randn({m, k}), w = at::randn({n, k}), dy = at::randn({m, n});
    for (const auto& [name, a, b] : {std::tuple{"x W^T", x, w.t()}, std::tuple{"dy W", dy, w},
                                     std::tuple{"dy^T x", dy.t(), x}}) {
      const auto [theirs, ours] = compare(a, b, rounds);
      fmt::print("| {} x {}, {} | {} | {:.0f} | {:.0f} | {:.2f} | {} |\n", n, k, m, name, theirs,
                 ours, ours / theirs,
                 kernels::gemm_pays(a.size(0), b.size(1), a.size(1)) ? "gemm" : "libtorch");
    }
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::bench::rows(argc > 1 ? std::max(1, std::atoi(argv[1])) : 7);
  return 0;
}
