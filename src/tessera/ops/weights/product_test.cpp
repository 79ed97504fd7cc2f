
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <fmt/ranges.h>

#include "tessera/base/threads.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/weights/product.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops::product_test {
namespace {

struct Shape {
  int64_t n, i, o;
};
// small and odd ones among them, which libtorch cuts by its threads
const Shape kShapes[] = {{1, 5, 1},   {1, 8, 70},   {7, 64, 64},   {64, 16, 256},
                         {37, 16, 1}, {300, 33, 7}, {520, 24, 96}, {16, 40, 1030}};

struct Case {
  Tensor x, w, b;
  explicit Case(const Shape& s, at::ScalarType type = at::kFloat)
      : x(gen({s.n, s.i}, 0.9, 0.1).to(type).requires_grad_(true)),
        w(gen({s.o, s.i}, 0.7, 0.3).to(type).requires_grad_(true)),
        b(gen({s.o}, 0.4, 0.2).to(type).requires_grad_(true)) {}
  /// y and the gradients of x, w and b.
  template <class Linear>
  std::vector<Tensor> run(Linear linear) const {
    const Tensor y = linear(x, w, b);
    (y * gen(y.sizes().vec(), 0.31, 0.5).to(y.scalar_type())).sum().backward();
    return {y.detach(), x.grad(), w.grad(), b.grad()};
  }
};

Tensor map(const Tensor& x, const Tensor& w, const Tensor& b) {
  return product(x, w.t()) + b;
}

TEST(Product, IsTheDefinition) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("{} x {} by {}", shape.n, shape.i, shape.o));
    const auto got = Case(shape).run(map);
    const auto want = Case(shape, at::kDouble).run([](auto&... t) { return at::linear(t...); });
    for (size_t k = 0; k < want.size(); ++k) {
      const double size = want[k].abs().max().item<double>();
      EXPECT_LE((got[k] - want[k]).abs().max().item<double>(), 2e-6 * std::max(size, 1.0)) << k;
    }
  }
}

const ProductSettings kBf16{.type = ProductType::bf16};

/// The nearest bf16 numbers, as doubles.
Tensor in_bf16(const Tensor& x) {
  return x.detach().to(at::kFloat).to(at::kBFloat16).to(at::kDouble);
}

TEST(Product, OfTypeBf16RoundsItsFactorsAndTheGradientsToo) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("{} x {} by {}", shape.n, shape.i, shape.o));
    const Case one(shape);
    const auto got = one.run([](const Tensor& x, const Tensor& w, const Tensor& b) {
      const Weight weight = Weight::dense("w", w), bias = Weight::dense("b", b);
      return linear(x, weight, &bias, kBf16);
    });
    const Tensor dy = gen(got[0].sizes().vec(), 0.31, 0.5).to(at::kFloat);
    const Tensor x = in_bf16(one.x), w = in_bf16(one.w), g = in_bf16(dy);
    const auto all = [](const Tensor& a, const Tensor& c, const Tensor& d, const Tensor& bias) {
      return std::vector<Tensor>{a.mm(c.t()) + bias, d.mm(c), d.t().mm(a), d.sum(0)};
    };
    const Tensor bias = one.b.detach().to(at::kDouble);
    std::vector<Tensor> want = all(x, w, g, bias);
    want[3] = dy.to(at::kDouble).sum(0);
    // float32 sums, whatever their order: an error by the sum of the sizes of what is added
    const std::vector<Tensor> sizes = all(x.abs(), w.abs(), g.abs(), bias.abs());
    for (size_t k = 0; k < want.size(); ++k)
      EXPECT_LE(((got[k] - want[k]).abs() / sizes[k]).max().item<double>(), 0x1p-23) << k;
    // and that is not the product in float32
    const Tensor exact = one.x.detach().to(at::kDouble).mm(one.w.detach().to(at::kDouble).t());
    EXPECT_GT((got[0] - one.b.detach() - exact).abs().max().item<double>(), 1e-4);
  }
}

TEST(Product, OfTypeBf16InExpertsIsThatOfLinear) {
  const Tensor x = gen({9, 20}, 0.9, 0.1).to(at::kFloat),
               w = gen({3, 7, 20}, 0.7, 0.3).to(at::kFloat),
               dy = gen({9, 7}, 0.31, 0.5).to(at::kFloat);
  const std::vector<int64_t> offsets = {0, 4, 4, 9};
  const Tensor a = x.clone().requires_grad_(true), b = w.clone().requires_grad_(true);
  const Tensor y = grouped_linear(a, Weight::dense("w", b), offsets, nullptr, kBf16);
  (y * dy).sum().backward();
  EXPECT_TRUE(at::equal(b.grad()[1], at::zeros({7, 20})));
  for (const int64_t e : {0, 2}) {
    const int64_t begin = offsets[static_cast<size_t>(e)],
                  n = offsets[static_cast<size_t>(e) + 1] - begin;
    const Tensor xe = x.narrow(0, begin, n).clone().requires_grad_(true),
                 we = w[e].clone().requires_grad_(true);
    const Tensor ye = linear(xe, Weight::dense("w", we), nullptr, kBf16);
    (ye * dy.narrow(0, begin, n)).sum().backward();
    EXPECT_TRUE(at::equal(y.detach().narrow(0, begin, n), ye.detach()));
    EXPECT_TRUE(at::equal(a.grad().narrow(0, begin, n), xe.grad()));
    EXPECT_TRUE(at::equal(b.grad()[e], we.grad()));
  }
}

// what a recorded product keeps of its settings counts, not the thread that asks for gradients
TEST(Product, ABackwardPassOnAnotherThreadIsThatOfTheForwardPass) {
  const auto drop = std::make_shared<const InputDrop>(
      [](const Tensor& x, double p, const std::string&) { return x * (1 - p); });
  const std::vector<ProductSettings> all = {{},
                                            kBf16,
                                            {.gradients_in_place = true},
                                            {.type = ProductType::bf16, .gradients_in_place = true},
                                            {.type = ProductType::bf16, .drop = drop}};
  const std::vector<int64_t> offsets = {0, 12, 12, 37};
  for (size_t s = 0; s < all.size(); ++s) {
    SCOPED_TRACE(s);
    const auto run = [&](bool elsewhere) {
      const auto leaf = [](const std::vector<int64_t>& sizes, double from) {
        return gen(sizes, from, 0.3).to(at::kFloat).requires_grad_(true);
      };
      const Tensor x = leaf({37, 16}, 0.9), w = leaf({20, 16}, 0.7), a = leaf({4, 16}, 0.5),
                   b = leaf({20, 4}, 0.2), e = leaf({3, 20, 16}, 0.8);
      // gradients that are there are added to
      w.mutable_grad() = gen(w.sizes().vec(), 0.1, 0.2).to(at::kFloat);
      const auto weight = [](const Tensor& t) {
        return std::make_shared<const Weight>(Weight::dense("w", t));
      };
      const Tensor y = linear(x, *weight(w), nullptr, all[s]) +
                       linear(x, Weight::adapted(weight(w.detach()), weight(a), weight(b), 1, 0.25),
                              nullptr, all[s]) +
                       grouped_linear(x, *weight(e), offsets, nullptr, all[s]);
      const auto backward = [&] {
        (y * gen(y.sizes().vec(), 0.31, 0.5).to(at::kFloat)).sum().backward();
      };
      if (elsewhere)
        std::thread(backward).join();
      else
        backward();
      return std::vector<Tensor>{y.detach(), x.grad(), w.grad(), a.grad(), b.grad(), e.grad()};
    };
    const auto here = run(false), elsewhere = run(true), again = run(false);
    for (size_t k = 0; k < here.size(); ++k) {
      EXPECT_TRUE(at::equal(elsewhere[k], here[k])) << k;
      EXPECT_TRUE(at::equal(again[k], here[k])) << k;
    }
  }
}

TEST(Product, SameBitsForAnyNumberOfThreads) {
  const int before = thread_count(), torch_before = at::get_num_threads();
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("{} x {} by {}", shape.n, shape.i, shape.o));
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3, 8}) {
      set_thread_count(threads);
      at::set_num_threads(threads);
      const auto got = Case(shape).run(map);
      if (first.empty()) first = got;
      for (size_t k = 0; k < got.size(); ++k)
        EXPECT_TRUE(at::equal(got[k], first[k])) << threads << " " << k;
    }
  }
  set_thread_count(before);
  at::set_num_threads(torch_before);
}

/// Two tensors, what makes one of them, and gradients of a sum over it.
template <class Make>
std::vector<Tensor> with_gradients(at::ScalarType type,
                                   const std::vector<int64_t>& a_sizes,
                                   const std::vector<int64_t>& b_sizes,
                                   Make make) {
  const Tensor a = gen(a_sizes, 0.9, 0.1).to(type).requires_grad_(true),
               b = gen(b_sizes, 0.7, 0.3).to(type).requires_grad_(true);
  const Tensor y = make(a, b);
  (y * gen(y.sizes().vec(), 0.31, 0.5).to(type)).sum().backward();
  return {y.detach(), a.grad(), b.grad()};
}

template <class Ours, class Theirs>
void expect_definition(const std::vector<int64_t>& a,
                       const std::vector<int64_t>& b,
                       Ours ours,
                       Theirs theirs) {
  SCOPED_TRACE(fmt::format("[{}] [{}]", fmt::join(a, ", "), fmt::join(b, ", ")));
  const auto want = with_gradients(at::kDouble, a, b, theirs);
  std::vector<Tensor> first;
  for (const int threads : {1, 2, 3}) {
    const int before = thread_count(), torch_before = at::get_num_threads();
    set_thread_count(threads);
    at::set_num_threads(threads);
    const auto got = with_gradients(at::kFloat, a, b, ours);
    set_thread_count(before);
    at::set_num_threads(torch_before);
    if (first.empty()) first = got;
    for (size_t k = 0; k < want.size(); ++k) {
      ASSERT_EQ(got[k].sizes(), want[k].sizes());
      EXPECT_TRUE(at::equal(got[k], first[k])) << threads << " " << k;
      EXPECT_TRUE(at::allclose(got[k].to(at::kDouble), want[k], 1e-4, 1e-4)) << k;
    }
  }
}

TEST(Product, LeadingDimensionsBroadcast) {
  const auto theirs = [](const Tensor& x, const Tensor& y) { return at::matmul(x, y); };
  using Sizes = std::vector<int64_t>;
  for (const auto& [a, b] : {std::pair<Sizes, Sizes>{{3, 5, 16}, {16, 9}},
                             {{7, 64}, {2, 64, 10}},
                             {{2, 1, 7, 16}, {3, 16, 4}},
                             {{1, 7, 64}, {1, 64, 64}},  // which libtorch cuts by its threads
                             {{1, 1, 7, 64}, {64, 64}},
                             {{40, 9, 33}, {40, 33, 17}},
                             {{2, 300, 64}, {2, 64, 300}},
                             {{5, 0, 4}, {5, 4, 3}},
                             {{5, 2, 0}, {5, 0, 3}},
                             {{0, 2, 4}, {0, 4, 3}}})
    expect_definition(a, b, product, theirs);
}

TEST(Product, EinsumOfTwoIsTheDefinition) {
  using Sizes = std::vector<int64_t>;
  for (const auto& [equation, a, b] :
       {std::tuple<const char*, Sizes, Sizes>{"nc,hck->nhk", {11, 6}, {3, 6, 5}},
        {"bcihn,bcjhn->bcijh", {2, 3, 4, 2, 5}, {2, 3, 6, 2, 5}},
        {"bthm,bthu->bhmu", {1, 37, 1, 7}, {1, 37, 1, 64}},
        {"bhq,ghpq->bghp", {4, 2, 3}, {4, 2, 5, 3}},
        {"i,j->ij", {3}, {4}},
        {"thd,rhdn->rhtn", {9, 2, 6}, {3, 2, 6, 4}}})
    expect_definition(
        a, b, [e = equation](const Tensor& x, const Tensor& y) { return einsum(e, x, y); },
        [e = equation](const Tensor& x, const Tensor& y) {
          return at::einsum(e, {x, y});
        });
}

// Both may use tiles, which are state of the threads.
TEST(Product, InBf16InTurnWithLibtorchsOwn) {
  const Tensor a = gen({96, 160}, 0.9, 0.1).to(at::kFloat),
               b = gen({160, 112}, 0.7, 0.3).to(at::kFloat);
  const Tensor a16 = a.to(at::kBFloat16), b16 = b.to(at::kBFloat16);
  const Tensor exact = at::mm(a16.to(at::kDouble), b16.to(at::kDouble));
  const auto ours = [&] {
    const Tensor out = at::empty({96, 112}, a.options());
    multiply_into(out, a, b, /*add=*/false, ProductType::bf16);
    return out;
  };
  const Tensor theirs_first = at::mm(a16, b16), ours_first = ours();
  EXPECT_TRUE(at::allclose(ours_first.to(at::kDouble), exact, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(theirs_first.to(at::kDouble), exact, 1e-2, 1e-2));
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_TRUE(at::equal(at::mm(a16, b16), theirs_first));
    EXPECT_TRUE(at::equal(ours(), ours_first));
  }
}

TEST(Product, GradientsOfGradients) {
  const Tensor a = gen({2, 3, 4}, 0.9, 0.1).to(at::kFloat).requires_grad_(true),
               b = gen({2, 4, 5}, 0.7, 0.3).to(at::kFloat).requires_grad_(true);
  const auto second = [&](const Tensor& y) {
    const auto first = torch::autograd::grad({y.square().sum()}, {a}, {}, true, true);
    return torch::autograd::grad({first[0].square().sum()}, {b})[0];
  };
  EXPECT_TRUE(at::allclose(second(product(a, b)), second(at::matmul(a, b)), 1e-4, 1e-4));
}

}  // namespace
}  // namespace tessera::ops::product_test
