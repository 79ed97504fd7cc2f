#include "tessera/ops/attention/relative_products.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::relative_products_test {
namespace {

/// index[t][s] = clamp(s - t + shift, 0, rows - 1)
Tensor diagonal_index(int64_t t, int64_t s, int64_t shift, int64_t rows) {
  return (at::arange(s, at::kLong).unsqueeze(0) - at::arange(t, at::kLong).unsqueeze(1) + shift)
      .clamp(0, rows - 1);
}

TEST(RelativeProducts, EachElementIsTheProductOfItsTwoRows) {
  // many rows of x with narrow spans, and few with wide ones
  for (const auto& [t, s] : {std::pair<int64_t, int64_t>{40, 3}, {3, 40}, {1, 1}})
    for (const bool of_heads : {true, false}) {
      const int64_t rows = 45;
      const Tensor x = gen({2, 3, t, 5}, 0.37, 0.11);
      const Tensor table = of_heads ? gen({3, rows, 5}, 0.53, 0.29) : gen({rows, 5}, 0.53, 0.29);
      const Tensor index = diagonal_index(t, s, 41, rows);
      Tensor want = at::empty({2, 3, t, s}, at::kDouble);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 3; ++h)
          for (int64_t i = 0; i < t; ++i)
            for (int64_t j = 0; j < s; ++j) {
              const int64_t row = index[i][j].item<int64_t>();
              want[b][h][i][j] = (x[b][h][i] * (of_heads ? table[h] : table)[row]).sum();
            }
      expect_both(
          [&](at::ScalarType type) { return products_at(x.to(type), table.to(type), index); }, want,
          1e-13);
    }
}

TEST(RelativeProducts, OneRowOfManyHasTheSameBits) {
  const at::NoGradGuard no_gradients;
  const Tensor x = gen({1, 2, 40, 19}, 0.37, 0.11).to(at::kFloat),
               table = gen({45, 19}, 0.53, 0.29).to(at::kFloat);
  const Tensor index = diagonal_index(40, 3, 41, 45);
  const Tensor all = products_at(x, table, index);
  for (int64_t i = 0; i < 40; ++i)
    EXPECT_TRUE(at::equal(products_at(x.narrow(2, i, 1), table, index.narrow(0, i, 1)),
                          all.narrow(2, i, 1)))
        << i;
}

}  // namespace
}  // namespace tessera::ops::relative_products_test
