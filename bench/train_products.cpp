// Products of a training step: kernels::gemm in float32 and bfloat16 beside libtorch's in float32,
// in turns, medians.
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

struct Speeds {
  double libtorch, gemm, in_bf16;
};

/// GFLOP/s of out = a b.
Speeds compare(const Tensor& a, const Tensor& b, int rounds) {
  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  Tensor out = at::empty({m, n});
  const auto by = [&](kernels::ProductType type) {
    kernels::gemm(type, {a.const_data_ptr<float>(), a.stride(0), a.stride(1)},
                  {b.const_data_ptr<float>(), b.stride(0), b.stride(1)}, m, n, k,
                  out.mutable_data_ptr<float>(), n, false);
  };
  std::array<std::vector<double>, 3> times;
  for (int i = 0; i <= rounds; ++i) {
    const std::array<double, 3> now = {seconds([&] { at::mm_out(out, a, b); }),
                                       seconds([&] { by(kernels::ProductType::float32); }),
                                       seconds([&] { by(kernels::ProductType::bf16); })};
    if (i == 0) continue;
    for (size_t j = 0; j < now.size(); ++j) times[j].push_back(now[j]);
  }
  const double work = 2e-9 * static_cast<double>(m * n * k);
  return {work / median(times[0]), work / median(times[1]), work / median(times[2])};
}

void rows(int rounds) {
  fmt::print(
      "| N x K, M tokens | form | libtorch, GFLOP/s | gemm | ratio | taken | in bf16 | ratio |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{2048, 2304, 768},
                                                                   {2048, 768, 768},
                                                                   {2048, 3072, 768},
                                                                   {2048, 768, 3072},
                                                                   {256, 1024, 384},
                                                                   {2048, 384, 128}}) {
    const Tensor x = at::randn({m, k}), w = at::randn({n, k}), dy = at::randn({m, n});
    for (const auto& [name, a, b] : {std::tuple{"x W^T", x, w.t()}, std::tuple{"dy W", dy, w},
                                     std::tuple{"dy^T x", dy.t(), x}}) {
      const Speeds speeds = compare(a, b, rounds);
      const bool taken = kernels::gemm_pays(a.size(0), b.size(1), a.size(1));
      fmt::print("| {} x {}, {} | {} | {:.0f} | {:.0f} | {:.2f} | {} | {:.0f} | {:.2f} |\n", n, k,
                 m, name, speeds.libtorch, speeds.gemm, speeds.gemm / speeds.libtorch,
                 taken ? "gemm" : "libtorch", speeds.in_bf16,
                 speeds.in_bf16 / (taken ? speeds.gemm : speeds.libtorch));
    }
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::bench::rows(argc > 1 ? std::max(1, std::atoi(argv[1])) : 7);
  return 0;
}
