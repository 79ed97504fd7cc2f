#include "tessera/ops/weights/blocked_linear.h"

#include <ATen/Parallel.h>

#include "tessera/base/threads.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::blocked_linear_test {
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

TEST(BlockedLinear, IsTheDefinition) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("{} x {} by {}", shape.n, shape.i, shape.o));
    const auto got = Case(shape).run(blocked_linear);
    const auto want = Case(shape, at::kDouble).run([](auto&... t) { return at::linear(t...); });
    for (size_t k = 0; k < want.size(); ++k) {
      const double size = want[k].abs().max().item<double>();
      EXPECT_LE((got[k] - want[k]).abs().max().item<double>(), 2e-6 * std::max(size, 1.0)) << k;
    }
  }
}

TEST(BlockedLinear, SameBitsForAnyNumberOfThreads) {
  const int before = thread_count(), torch_before = at::get_num_threads();
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("{} x {} by {}", shape.n, shape.i, shape.o));
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3, 8}) {
      set_thread_count(threads);
      at::set_num_threads(threads);
      const auto got = Case(shape).run(blocked_linear);
      if (first.empty()) first = got;
      for (size_t k = 0; k < got.size(); ++k)
        EXPECT_TRUE(at::equal(got[k], first[k])) << threads << " " << k;
    }
  }
  set_thread_count(before);
  at::set_num_threads(torch_before);
}

TEST(BlockedLinear, LeadingDimensionsAndNoBias) {
  const Tensor x = gen({3, 5, 16}, 0.9, 0.1).to(at::kFloat),
               w = gen({9, 16}, 0.7, 0.3).to(at::kFloat);
  const Tensor y = blocked_linear(x, w);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{3, 5, 9}));
  EXPECT_LT((y - at::matmul(x, w.t())).abs().max().item<double>(), 1e-5);
}

}  // namespace
}  // namespace tessera::ops::blocked_linear_test
