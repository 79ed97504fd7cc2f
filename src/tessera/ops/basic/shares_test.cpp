// Forms for training whose bits do not turn on the number of threads: elementwise functions,
// softmax, parameters over rows, sums.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::shares_test {
namespace {

using Inputs = std::vector<Tensor>;

/// What f makes of the inputs, and their gradients of a sum over it.
Inputs run(const std::function<Tensor(const Inputs&)>& f,
           const Inputs& given,
           at::ScalarType type) {
  Inputs leaves;
  for (const Tensor& x : given)
    leaves.push_back(x.to(type, false, /*copy=*/true).requires_grad_(true));
  const Tensor y = f(leaves);
  (y * gen(y.sizes().vec(), 0.31, 0.5).to(type)).sum().backward();
  Inputs out{y.detach()};
  for (const Tensor& leaf : leaves) out.push_back(leaf.grad());
  return out;
}

/// In float32 the same bits for any number of threads, and the numbers of `plain` in double. Sums
/// are of so many `terms` of size 1, which may cancel.
void expect_form(const std::function<Tensor(const Inputs&)>& f,
                 const std::function<Tensor(const Inputs&)>& plain,
                 const Inputs& given,
                 int64_t terms = 0) {
  const Inputs want = run(plain, given, at::kDouble);
  const int before = thread_count(), torch_before = at::get_num_threads();
  Inputs first;
  for (const int threads : {1, 2, 3, 16}) {
    set_thread_count(threads);
    at::set_num_threads(threads);
    const Inputs got = run(f, given, at::kFloat);
    if (first.empty()) first = got;
    for (size_t k = 0; k < want.size(); ++k) {
      ASSERT_EQ(got[k].sizes(), want[k].sizes());
      EXPECT_TRUE(at::equal(got[k], first[k])) << threads << " threads, " << k;
      const double size = std::max(1.0, want[k].abs().max().item<double>());
      EXPECT_LT((got[k] - want[k]).abs().max().item<double>(),
                1e-5 * size + 2e-9 * static_cast<double>(terms))
          << k;
    }
  }
  set_thread_count(before);
  at::set_num_threads(torch_before);
}

// more than libtorch computes in one thread (2^15), and shares that end within a vector
const Tensor kX = gen({601, 97}, 0.37, 0.1) * 6;

TEST(Shares, ElementwiseFunctions) {
  using F = Elementwise;
  const auto plain = [](F f, const Tensor& x) {
    return f == F::sigmoid    ? at::sigmoid(x)
           : f == F::silu     ? at::silu(x)
           : f == F::softplus ? at::softplus(x)
           : f == F::gelu     ? at::gelu(x)
                              : at::gelu(x, "tanh");
  };
  for (const F f : {F::sigmoid, F::silu, F::softplus, F::gelu, F::gelu_tanh})
    for (const Tensor& x : {kX, kX.t(), kX.narrow(0, 0, 1).narrow(1, 0, 5)}) {
      SCOPED_TRACE(static_cast<int>(f));
      expect_form([&](const Inputs& in) { return elementwise(f, in[0]); },
                  [&](const Inputs& in) { return plain(f, in[0]); }, {x});
    }
}

// a norm behind a layer whose units are all far below zero shows the relative error
TEST(Shares, GelusKeepSmallResults) {
  const Tensor x = at::linspace(-8, -2, 997, at::kFloat);
  const auto relative = [](const Tensor& got, const Tensor& want) {
    return ((got - want) / want).abs().max().item<double>();
  };
  const auto both = [&](Elementwise f) {
    const Tensor in = x.clone().requires_grad_(true);
    const Tensor out = elementwise(f, in);
    return std::pair{out.detach(), torch::autograd::grad({out.sum()}, {in})[0]};
  };
  const Tensor wide = x.to(at::kDouble).requires_grad_(true);
  const Tensor exact = 0.5 * wide * at::erfc(wide * -std::sqrt(0.5));
  const Tensor tanh_form =
      wide * at::sigmoid(std::sqrt(8 / M_PI) * (wide + 0.044715 * wide * wide * wide));
  for (const auto& [f, want] :
       {std::pair{Elementwise::gelu, exact}, std::pair{Elementwise::gelu_tanh, tanh_form}}) {
    SCOPED_TRACE(static_cast<int>(f));
    const auto [y, dx] = both(f);
    EXPECT_LT(relative(y, want.detach()), 1e-5);
    EXPECT_LT(relative(dx, torch::autograd::grad({want.sum()}, {wide})[0]), 1e-5);
  }
}

TEST(Shares, GradientsOfGradients) {
  const Tensor x = kX.narrow(0, 0, 7).to(at::kFloat).requires_grad_(true);
  const auto second = [&](const Tensor& y) {
    const auto first = torch::autograd::grad({y.square().sum()}, {x}, {}, true, true);
    return torch::autograd::grad({first[0].square().sum()}, {x})[0];
  };
  const auto expect = [&](const Tensor& got, const Tensor& want) {
    EXPECT_TRUE(at::allclose(second(got), second(want), 1e-3, 1e-4));
  };
  expect(elementwise(Elementwise::silu, x), at::silu(x));
  expect(elementwise(Elementwise::softplus, x), at::softplus(x));
  expect(elementwise(Elementwise::gelu, x), at::gelu(x));
  expect(elementwise(Elementwise::gelu_tanh, x), at::gelu(x, "tanh"));
  expect(softmax(x), at::softmax(x, -1));
}

TEST(Shares, Softmax) {
  for (const Tensor& x : {kX, kX.narrow(1, 0, 61), kX.reshape({1, -1, 97})})
    expect_form([](const Inputs& in) { return softmax(in[0]); },
                [](const Inputs& in) { return at::softmax(in[0], -1); }, {x});
}

TEST(Shares, ParametersOverRows) {
  const auto both = [](const Inputs& in) {
    return in[0] * over_rows(in[1], in[0]) + over_rows(in[2], in[0]);
  };
  const auto plain = [](const Inputs& in) { return in[0] * in[1] + in[2]; };
  for (const int64_t c : {97, 64, 1}) {
    const Tensor x = gen({3, 601, c}, 0.37, 0.1);
    expect_form(both, plain, {x, gen({c}, 0.5, 0.1), gen({c}, 0.7, 0.2)});
  }
  // one number, of any shape
  expect_form(both, plain, {kX, gen({1}, 0.5, 0.1), gen({1}, 0.7, 0.2).squeeze(0)});
}

// shapes and layouts whose sums by libtorch have other bits with 2 to 16 threads
TEST(Shares, Sums) {
  struct Sum {
    Tensor x;
    std::vector<int64_t> dims;
  };
  const auto big = [](const std::vector<int64_t>& sizes) { return gen(sizes, 0.37, 0.1); };
  for (const Sum& sum : {Sum{big({1025, 100}), {0}},
                         {big({100, 600}).t(), {0}},
                         {big({600, 48, 3}).permute({1, 2, 0}), {0}},
                         {big({31, 100, 63}), {-1, 0}},
                         {big({5, 1025, 3, 7}), {1, 3}},
                         {big({257, 4, 33}), {1}},
                         {big({100'000}), {0}},
                         {big({3, 5}), {1}}})
    for (const bool keepdim : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(sum.x.sizes(), "x"), keepdim));
      expect_form([&](const Inputs& in) { return ordered_sum(in[0], sum.dims, keepdim); },
                  [&](const Inputs& in) { return in[0].sum(sum.dims, keepdim); }, {sum.x},
                  sum.x.numel());
    }
  EXPECT_TRUE(at::equal(ordered_sum(at::ones({3, 0}), {1}), at::zeros({3})));
  EXPECT_TRUE(at::equal(ordered_sum(kX, at::IntArrayRef{}), kX));
  expect_form([](const Inputs& in) { return ordered_sum(in[0]); },
              [](const Inputs& in) { return in[0].sum(); }, {kX}, kX.numel());
  expect_form([](const Inputs& in) { return ordered_mean(in[0]); },
              [](const Inputs& in) { return in[0].mean(); }, {kX});
  expect_form([](const Inputs& in) { return ordered_mean(in[0], {0}); },
              [](const Inputs& in) { return in[0].mean(0); }, {kX});
}

// what autograd sums by itself: factors and terms that were broadcast, rows that were repeated
TEST(Shares, BroadcastFactors) {
  const Tensor x = gen({1025, 4, 25}, 0.37, 0.1);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{4, 1},
                                            {1025, 1, 25},
                                            {1025, 1, 1},
                                            {25},
                                            {1},
                                            {4, 25},
                                            {1, 1, 25},
                                            {}})
    expect_form([](const Inputs& in) { return in[0] * spread(in[1], in[0]); },
                [](const Inputs& in) { return in[0] * in[1]; }, {x, gen(sizes, 0.5, 0.1)},
                x.numel());
  for (const int64_t dim : {0, 1, -1})
    expect_form([&](const Inputs& in) { return repeat_each(in[0], 3, dim); },
                [&](const Inputs& in) { return in[0].repeat_interleave(3, dim); }, {x});
}

TEST(Shares, LayerNorm) {
  expect_form([](const Inputs& in) { return layer_norm(in[0], in[1], in[2], 0, 1e-5); },
              [](const Inputs& in) { return at::layer_norm(in[0], {97}, in[1], in[2], 1e-5); },
              {kX, gen({97}, 0.5, 0.1), gen({97}, 0.7, 0.2)});
}

}  // namespace
}  // namespace tessera::ops::shares_test
