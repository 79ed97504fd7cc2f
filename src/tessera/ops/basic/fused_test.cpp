// Fused forms against the plain ones in double: values and every gradient.
#include "tessera/ops/basic/fused.h"

#include <gtest/gtest.h>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::ops::fused_test {
namespace {

using Op = std::function<Tensor(const std::vector<Tensor>&)>;

/// Runs `fused` in float and `plain` in double on the same numbers and compares outputs and
/// gradients.
void expect_equal(const std::vector<Tensor>& inputs, const Op& fused, const Op& plain) {
  const auto run = [&](const Op& op, at::ScalarType type) {
    std::vector<Tensor> leaves;
    for (const Tensor& x : inputs) leaves.push_back(x.to(type).clone().requires_grad_(true));
    Tensor y = op(leaves);
    const Tensor dy = (at::arange(y.numel(), y.options().dtype(at::kDouble)) * 0.7)
                          .sin()
                          .reshape(y.sizes())
                          .to(type);
    y.backward(dy);
    std::vector<Tensor> all{y.detach()};
    for (const Tensor& x : leaves) all.push_back(x.grad());
    return all;
  };
  const auto got = run(fused, at::kFloat), want = run(plain, at::kDouble);
  // a gradient may cancel to almost nothing, so errors are relative to the largest of all
  double largest = 1e-6;
  for (size_t i = 1; i < want.size(); ++i)
    largest = std::max(largest, want[i].abs().max().item<double>());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), want[i].sizes());
    const double scale = i == 0 ? want[0].abs().max().item<double>() : largest;
    EXPECT_LT((got[i].to(at::kDouble) - want[i]).abs().max().item<double>(),
              (i == 0 ? 2e-6 : 1e-5) * scale)
        << (i == 0 ? "output" : "gradient of input ") << i;
  }
}

Tensor series(at::IntArrayRef shape, double a, double b) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return (at::arange(n, at::kDouble) * a + b).sin().reshape(shape) * 2;
}

TEST(Fused, RmsNorm) {
  for (const int64_t d : {1, 7, 8, 63, 65, 200})
    for (const int64_t rows : {1, 63, 64, 65, 130})
      for (const double offset : {0.0, 1.0}) {
        const auto norm = [&](const std::vector<Tensor>& in) {
          return rms_norm(in[0], in[1], offset, 1e-3);
        };
        expect_equal(
            {series({rows, d}, 0.37, 0.1), series({d}, 0.9, 0.4)},
            [&](const std::vector<Tensor>& in) {
              return fused_rms_norm(in[0], in[1], offset, 1e-3);
            },
            norm);
      }
}

TEST(Fused, Rope) {
  const Tensor positions = at::tensor({0, 1, 2, 100, 7}, at::kLong);
  for (const bool interleaved : {false, true})
    for (const int64_t pairs : {1, 4, 5}) {
      std::vector<double> omega;
      for (int64_t i = 0; i < pairs; ++i) omega.push_back(1.0 / static_cast<double>(1 + i));
      const auto table = rotary_table(positions, omega, 1.5, at::kFloat);
      const RotaryTable wide{table.cos_NR.to(at::kDouble), table.sin_NR.to(at::kDouble)};
      expect_equal(
          {series({5, 3, 10}, 0.37, 0.1)},
          [&](const auto& in) { return fused_rope(in[0], table, interleaved); },
          [&](const auto& in) { return rope(in[0], wide, interleaved); });
      // heads that lie transposed
      expect_equal(
          {series({3, 5, 10}, 0.37, 0.1)},
          [&](const auto& in) { return fused_rope(in[0].transpose(0, 1), table, interleaved); },
          [&](const auto& in) { return rope(in[0].transpose(0, 1), wide, interleaved); });
    }
}

TEST(Fused, SwiGlu) {
  for (const int64_t n : {1, 7, 1000, 40'000})
    expect_equal(
        {series({n}, 0.37, 0.1) * 5, series({n}, 0.9, 0.4)},
        [](const auto& in) { return fused_swiglu(in[0], in[1]); },
        [](const auto& in) { return gated(in[0], in[1], Activation::silu); });
}

TEST(Fused, SameBitsForAnyThreadCount) {
  const int before = thread_count();
  std::vector<Tensor> gradients;
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    const Tensor x = series({1000, 33}, 0.37, 0.1).to(at::kFloat).requires_grad_(true),
                 w = series({33}, 0.9, 0.4).to(at::kFloat).requires_grad_(true);
    fused_rms_norm(x, w, 0, 1e-5).square().sum().backward();
    gradients.push_back(at::cat({x.grad().flatten(), w.grad()}));
  }
  set_thread_count(before);
  for (size_t i = 1; i < gradients.size(); ++i) EXPECT_TRUE(at::equal(gradients[i], gradients[0]));
}

}  // namespace
}  // namespace tessera::ops::fused_test
