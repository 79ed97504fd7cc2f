// The test device itself: the CPU's bits, refusals of mixed devices, and accesses of the host.
#include "fake_device/fake_device.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace fake_device {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class TestDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { install(); }
};

struct Operation {
  const char* name;
  Tensors in;
  std::function<Tensor(const Tensors&)> run;
};

std::vector<Operation> operations() {
  at::manual_seed(1);
  const Tensor x = at::randn({8, 16}), y = at::randn({16, 8}),
               i = at::randint(0, 8, {5}, at::kLong);
  return {
      {"arithmetic", {x}, [](auto& t) { return (t[0] * 2 + 1).exp() / (t[0].abs() + 0.5); }},
      {"integers by a number", {i}, [](auto& t) { return t[0] * 0.5; }},
      {"matmul", {x, y}, [](auto& t) { return at::matmul(t[0], t[1]); }},
      {"softmax", {x}, [](auto& t) { return at::softmax(t[0], -1); }},
      {"embedding", {x, i}, [](auto& t) { return at::embedding(t[0], t[1]); }},
      {"sort", {x}, [](auto& t) { return std::get<0>(t[0].sort(1, true)); }},
      {"index_put_",
       {x, i, at::randn({5, 16})},
       [](auto& t) { return t[0].clone().index_put_({t[1]}, t[2], true); }},
      {"index by a mask", {x}, [](auto& t) { return t[0].index({t[0] > 0}); }},
      {"fft", {x}, [](auto& t) { return at::fft_irfft(at::fft_rfft(t[0], 32) * 0.5, 32); }},
      {"complex views",
       {x},
       [](auto& t) {
         return at::real(at::view_as_complex(t[0].view({8, 8, 2})).conj() * 2).contiguous();
       }},
      {"conv1d",
       {at::randn({2, 6, 20}), at::randn({6, 1, 4})},
       [](auto& t) { return at::conv1d(t[0], t[1], {}, 1, 3, 1, 6); }},
      {"layer_norm",
       {x, at::randn({16}), at::randn({16})},
       [](auto& t) { return at::layer_norm(t[0], {16}, t[1], t[2]); }},
      {"in place on a view",
       {x},
       [](auto& t) {
         Tensor c = t[0].clone();
         c.t().select(0, 3).mul_(3).add_(1);
         c.unfold(1, 4, 4).select(1, 0).zero_();
         return c;
       }},
      {"out of another size",
       {x, y},
       [](auto& t) {
         Tensor out = at::empty({0}, t[0].options());
         at::matmul_out(out, t[0], t[1]);
         return out;
       }},
      {"resize_ and set_",
       {x},
       [](auto& t) {
         Tensor c = t[0].clone(), v = c.narrow(0, 0, 2);
         c.resize_({10, 16}).narrow(0, 8, 2).fill_(1);
         Tensor e = at::empty({0}, t[0].options());
         e.set_(c);
         return at::cat({e, v});
       }},
      {"bfloat16",
       {x},
       [](auto& t) { return t[0].to(at::kBFloat16).matmul(t[0].to(at::kBFloat16).t()); }},
      {"factories",
       {x},
       [](auto& t) { return at::arange(16, t[0].options()) + at::eye(16, t[0].options()).tril(); }},
      {"foreach", {x, x + 1}, [](auto& t) {
         Tensors a = {t[0].clone(), t[1].clone()};
         at::_foreach_add_(a, 2.0);
         return a[0] * a[1];
       }}};
}

TEST_F(TestDevice, OperatorsHaveTheBitsOfTheCpu) {
  for (const Operation& operation : operations()) {
    Tensors there;
    for (const Tensor& t : operation.in) there.push_back(t.to(device()));
    const Tensor got = operation.run(there);
    EXPECT_EQ(got.device(), device()) << operation.name;
    EXPECT_TRUE(at::equal(got.cpu(), operation.run(operation.in))) << operation.name;
  }
}

TEST_F(TestDevice, TensorsOfSeveralDevicesAreRefused) {
  const Tensor x = at::ones({4, 4}), f = x.to(device()), i = at::zeros({2}, at::kLong);
  const std::vector<std::function<void()>> mixed = {[&] { f + x; },
                                                    [&] { x + f; },
                                                    [&] { f + x.to(device(1)); },
                                                    [&] { f.matmul(x); },
                                                    [&] { at::embedding(f, i); },
                                                    [&] {
                                                      at::cat({f, x});
                                                    },
                                                    [&] { at::where(x > 0, f, f); }};
  for (size_t k = 0; k < mixed.size(); ++k) {
    std::string what;
    try {
      mixed[k]();
    } catch (const c10::Error& error) {
      what = error.what_without_backtrace();
    }
    EXPECT_NE(what.find("expected all tensors to be on the same device"), std::string::npos)
        << k << ": " << what;
  }
  EXPECT_ANY_THROW(at::empty({int64_t{1} << 40}, f.options()));
  EXPECT_EQ((f + at::scalar_tensor(2.0)).device(), device());
  EXPECT_TRUE(at::equal(f.index({i}).cpu(), x.index({i})));
}

TEST_F(TestDevice, AccessesOfTheHostAreSeen) {
  const Tensor f = at::ones({4, 4}).to(device());
  volatile float sink = 0;
  EXPECT_EQ(touched([&] { sink = f.const_data_ptr<float>()[6]; }),
            "fake:0, byte 24 of an allocation of 64");
  EXPECT_EQ(touched([&] { f.mutable_data_ptr<float>()[5] = sink; }),
            "fake:0, byte 20 of an allocation of 64");
  EXPECT_EQ(touched([&] { sink = f.accessor<float, 2>()[0][0]; }),
            "fake:0, byte 0 of an allocation of 64");
  EXPECT_EQ(touched([&] { (f + f).cpu(); }), "");
}

TEST_F(TestDevice, CopiesAndReadNumbersAreCounted) {
  const Tensor x = at::ones({4, 4});
  reset_counts();
  const Tensor f = x.to(device());
  EXPECT_EQ(f.sum().item<float>(), 16);
  f.cpu();
  const Counts n = counts();
  EXPECT_EQ(n.to_device, 1);
  EXPECT_EQ(n.to_host, 1);
  EXPECT_EQ(n.scalars, 1);
}

std::thread::id g_backward_thread;
struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list g) {
    g_backward_thread = std::this_thread::get_id();
    return {2 * context->get_saved_variables()[0] * g[0]};
  }
};

TEST_F(TestDevice, BackwardRunsOnAThreadOfTheDevice) {
  const Tensor x = at::arange(6, at::kFloat).requires_grad_(),
               f = x.detach().to(device()).requires_grad_();
  Square::apply(x).sum().backward();
  Square::apply(f).sum().backward();
  EXPECT_NE(g_backward_thread, std::this_thread::get_id());
  EXPECT_TRUE(at::equal(f.grad().cpu(), x.grad()));
}

}  // namespace
}  // namespace fake_device
