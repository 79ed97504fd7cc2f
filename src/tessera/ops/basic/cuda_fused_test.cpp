// Norms, rotations and gates by kernels of CUDA, emulated on tensors of the CPU: values and
// gradients are those of the plain forms in double.
#include "tessera/ops/basic/cuda_fused.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>

#include "tessera/cuda/emulation_testing.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::ops::cuda_fused_test {
namespace {

using Tensors = std::vector<Tensor>;
using Of = std::function<Tensor(const Tensors&)>;

/// Random numbers, in double.
Tensor random(at::IntArrayRef sizes, int64_t seed) {
  const Tensor n = at::arange(seed, seed + c10::multiply_integers(sizes), at::kDouble);
  return (n * 0.7).sin().reshape(sizes);
}

/// The result of inputs that are rounded to `type`, and the gradients of its sum with weights.
Tensors with_gradients(const Of& of, const Tensors& in, at::ScalarType type) {
  Tensors leaves;
  for (const Tensor& x : in) leaves.push_back(x.to(at::kFloat).to(type).requires_grad_(true));
  const Tensor y = of(leaves);
  Tensors out{y.detach()};
  const Tensor sum = (y * random(y.sizes(), 1000).to(at::kFloat).to(type)).sum();
  for (const Tensor& gradient : torch::autograd::grad({sum}, leaves)) out.push_back(gradient);
  return out;
}

void expect_plain(const Of& by_kernels, const Of& plain, const Tensors& in) {
  const at::AutoGradMode gradients(true);
  const Tensors want = with_gradients(plain, in, at::kDouble);
  for (const cuda::Order order : {cuda::Order::forwards, cuda::Order::backwards}) {
    cuda::Emulator emulator(order);
    const Tensors got = with_gradients(by_kernels, in, at::kFloat);
    EXPECT_FALSE(emulator.launches().empty());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), want[i].sizes());
      // gradients of a row of one number are differences of terms of about 1
      EXPECT_LE((got[i].to(at::kDouble) - want[i]).abs().max().item<double>(),
                3e-6 * std::max(1.0, want[i].abs().max().item<double>()))
          << (i == 0 ? "y" : "gradient ") << i;
    }
  }
}

TEST(CudaFused, RmsNormWithGradients) {
  for (const auto& [rows, d] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 64}, {130, 33}, {5, 257}, {3, 1000}}) {
    const Tensor x = random({rows, d}, 3), w = random({d}, 5);
    expect_plain([](const Tensors& t) { return cuda_rms_norm(t[0], t[1], 1, 1e-5); },
                 [](const Tensors& t) { return rms_norm(t[0], t[1], 1, 1e-5); }, {x, w});
    expect_plain([](const Tensors& t) { return cuda_rms_norm(t[0], {}, 0, 1e-5); },
                 [](const Tensors& t) { return rms_norm(t[0], {}, 0, 1e-5); }, {x});
  }
  // rows that do not lie one after another
  expect_plain([](const Tensors& t) { return cuda_rms_norm(t[0].transpose(0, 1), t[1], 0, 1e-5); },
               [](const Tensors& t) { return rms_norm(t[0].transpose(0, 1), t[1], 0, 1e-5); },
               {random({6, 5, 4}, 3), random({4}, 5)});
}

TEST(CudaFused, RopeWithGradients) {
  for (const bool interleaved : {false, true}) {
    const auto turned = [&](auto rotate, at::ScalarType type) {
      const Tensor angles = random({5, 3}, 9);
      const RotaryTable table{angles.cos().to(at::kFloat).to(type),
                              angles.sin().to(at::kFloat).to(type)};
      return [=](const Tensors& t) { return rotate(t[0], table, interleaved); };
    };
    expect_plain(turned(cuda_rope, at::kFloat), turned(rope, at::kDouble), {random({5, 2, 8}, 3)});
    expect_plain(turned(cuda_rope, at::kFloat), turned(rope, at::kDouble), {random({5, 2, 6}, 3)});
  }
}

TEST(CudaFused, SwiGluWithGradients) {
  expect_plain([](const Tensors& t) { return cuda_swiglu(t[0], t[1]); },
               [](const Tensors& t) { return gated(t[0], t[1], Activation::silu); },
               {random({9, 130}, 3) * 10, random({9, 130}, 5)});
}

}  // namespace
}  // namespace tessera::ops::cuda_fused_test
