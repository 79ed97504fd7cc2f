// Attention for training, forward and backward, against libtorch's scaled_dot_product_attention in
// one process: interleaved, medians, causal, float32.
//   flash_attention [repetitions]
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "tessera/base/cpu.h"
#include "tessera/base/threads.h"
#include "tessera/ops/flash_attention.h"

namespace {

using tessera::Tensor;

struct Seconds {
  std::vector<double> forward, backward;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

template <class F>
double seconds_of(const F& f) {
  const auto before = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

void measure(const std::function<Tensor()>& attend,
             const std::vector<Tensor>& inputs,
             Seconds& seconds) {
  Tensor out;
  seconds.forward.push_back(seconds_of([&] { out = attend(); }));
  const Tensor gradient = at::ones_like(out);
  seconds.backward.push_back(seconds_of([&] { torch::autograd::grad({out}, inputs, {gradient}); }));
}

}  // namespace

int main(int argc, char** argv) {
  tessera::cap_onednn();
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  fmt::print("{} threads; GF/s of the causal half, backward as 2.5 forwards\n",
             tessera::thread_count());
  fmt::print("{:>6} {:>4} {:>8} {:>22} {:>22} {:>8}\n", "T", "D", "", "tessera", "libtorch",
             "ratio");
  for (const int64_t d : {64, 128})
    for (const int64_t t : {1024, 2048, 4096}) {
      const int64_t heads = 8 * 64 / d;
      const auto leaf = [&] { return at::randn({1, t, heads, d}).requires_grad_(true); };
      const std::vector<Tensor> inputs{leaf(), leaf(), leaf()};
      const double scale = 1 / std::sqrt(static_cast<double>(d));
      const auto ours = [&] {
        return tessera::ops::flash_attention(inputs[0], inputs[1], inputs[2], 0, 0,
                                             {.scale = scale});
      };
      const auto theirs = [&] {
        return at::scaled_dot_product_attention(inputs[0].transpose(1, 2),
                                                inputs[1].transpose(1, 2),
                                                inputs[2].transpose(1, 2), {}, 0.0, true, scale)
            .transpose(1, 2);
      };
      const double difference = (ours() - theirs()).abs().max().item<double>();
      if (difference > 1e-4) {
        fmt::print("results differ by {}\n", difference);
        return 1;
      }
      Seconds a, b;
      for (int i = 0; i < repetitions; ++i) {
        measure(ours, inputs, a);
        measure(theirs, inputs, b);
      }
      const double flops = 2.0 * static_cast<double>(heads * t * t * d);
      const auto row = [&](const char* name, double ours_s, double theirs_s, double work) {
        fmt::print(
            "{:>6} {:>4} {:>8} {:>10.2f} ms {:>4.0f} GF/s {:>10.2f} ms {:>4.0f} GF/s {:>8.2f}\n", t,
            d, name, ours_s * 1e3, work / ours_s / 1e9, theirs_s * 1e3, work / theirs_s / 1e9,
            theirs_s / ours_s);
      };
      row("forward", median(a.forward), median(b.forward), flops);
      row("backward", median(a.backward), median(b.backward), 2.5 * flops);
    }
}
