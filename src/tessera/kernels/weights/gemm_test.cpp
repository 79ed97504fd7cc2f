#include "tessera/kernels/weights/gemm.h"

#include <array>
#include <limits>

#include "tessera/base/cpu.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/kernels/weights/forms_testing.h"

namespace tessera::kernels::gemm_test {
namespace {

enum class Form { row_major, column_major };

/// Numbers of a matrix [rows, columns] at (i, j), stored either way with some room between.
struct Matrix {
  int64_t rows, columns, stride;
  Form form;
  Values values;
  Matrix(int64_t r, int64_t c, Form f, uint64_t seed)
      : rows(r),
        columns(c),
        stride((f == Form::row_major ? c : r) + 3),
        form(f),
        values(stride * (f == Form::row_major ? r : c) + 1, seed, 1, 1) {}
  MatrixView view() const {
    return form == Form::row_major ? MatrixView{values.data(), stride, 1}
                                   : MatrixView{values.data(), 1, stride};
  }
  double operator()(int64_t i, int64_t j) const {
    return static_cast<double>(values[form == Form::row_major ? i * stride + j : j * stride + i]);
  }
};

constexpr int64_t kSizes[][3] = {{1, 1, 1},      {14, 32, 5},    {6, 16, 9},
                                 {15, 33, 7},    {113, 70, 3},   {2, 300, 800},
                                 {130, 17, 770}, {29, 65, 1537}, {290, 33, 70}};

constexpr ProductType kTypes[] = {ProductType::float32, ProductType::bf16, ProductType::fp16};

double rounded(ProductType type, double value) {
  const auto number = static_cast<float>(value);
  if (type == ProductType::bf16) return static_cast<double>(bf16_to_float(float_to_bf16(number)));
  if (type == ProductType::fp16) return static_cast<double>(f16_to_float(float_to_f16(number)));
  return value;
}

/// The numbers of a matrix, rounded, row by row.
std::vector<double> all_rounded(ProductType type, const Matrix& matrix) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < matrix.rows; ++i)
    for (int64_t j = 0; j < matrix.columns; ++j) numbers.push_back(rounded(type, matrix(i, j)));
  return numbers;
}

TEST(Gemm, IsTheSumOfRoundedNumbersInEveryFormAndTarget) {
  on_every_form([] {
    for (const ProductType type : kTypes)
      for (const auto& [m, n, k] : kSizes)
        for (const Form fa : {Form::row_major, Form::column_major})
          for (const Form fb : {Form::row_major, Form::column_major})
            for (const bool add : {false, true}) {
              const Matrix a(m, k, fa, 1), b(k, n, fb, 2);
              const int64_t stride = n + 2;
              Values out(m * stride, 3);
              const Values before = out;
              gemm(type, a.view(), b.view(), m, n, k, out.data(), stride, add);
              const std::vector<double> of_a = all_rounded(type, a), of_b = all_rounded(type, b);
              for (int64_t i = 0; i < m; ++i) {
                for (int64_t j = 0; j < n; ++j) {
                  double sum = add ? static_cast<double>(before[i * stride + j]) : 0;
                  double magnitude = std::abs(sum);
                  for (int64_t p = 0; p < k; ++p) {
                    const double product = of_a[at(i * k + p)] * of_b[at(p * n + j)];
                    sum += product;
                    magnitude += std::abs(product);
                  }
                  ASSERT_NEAR(out[i * stride + j], sum, 1e-6 * magnitude) << i << ", " << j;
                }
                // nothing is written beside it
                for (int64_t j = n; j < stride && i + 1 < m; ++j)
                  ASSERT_EQ(out[i * stride + j], before[i * stride + j]);
              }
            }
  });
}

TEST(Gemm, BeginsWithABias) {
  on_every_form([] {
    for (const auto& [m, n, k] : kSizes)
      for (const int64_t depth : {int64_t{0}, k})
        for (const ProductType type : kTypes) {
          const Matrix a(m, k, Form::row_major, 1), b(k, n, Form::column_major, 2);
          const Values bias(n, 4);
          Values plain(m * n, 3), out(m * n, 5);
          for (int64_t i = 0; i < m; ++i) std::copy_n(bias.data(), n, plain.data() + i * n);
          gemm(type, a.view(), b.view(), m, n, depth, plain.data(), n, /*add=*/true);
          gemm(type, a.view(), b.view(), m, n, depth, out.data(), n, /*add=*/false, bias.data());
          for (int64_t i = 0; i < m * n; ++i) ASSERT_EQ(out[i], plain[i]) << i;
        }
  });
  const float one = 1;
  float out = 0;
  EXPECT_THROW(
      gemm(ProductType::float32, {&one, 1, 1}, {&one, 1, 1}, 1, 1, 1, &out, 1, /*add=*/true, &one),
      Error);
}

TEST(Gemm, WideOnesAreDoneInPiecesOfTheSameBits) {
  // more columns than are packed at once
  constexpr int64_t m = 3, n = 9000, k = 800;
  const Matrix a(m, k, Form::row_major, 1), b(k, n, Form::column_major, 2);
  const Values bias(n, 4);
  Values out(m * n, 3);
  gemm(ProductType::float32, a.view(), b.view(), m, n, k, out.data(), n, /*add=*/false,
       bias.data());
  for (const int64_t j : {int64_t{0}, int64_t{5000}, int64_t{5500}, n - 70}) {
    Values some(m * 70, 3);
    gemm(ProductType::float32, a.view(), {b.view().data + j * b.view().column, 1, b.view().column},
         m, 70, k, some.data(), 70,
         /*add=*/false, bias.data() + j);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t c = 0; c < 70; ++c) ASSERT_EQ(out[i * n + j + c], some[i * 70 + c]) << j + c;
  }
}

/// One number against 1: the sum is the rounded number.
void expect_rounded(ProductType type, const std::vector<std::pair<float, float>>& cases) {
  on_every_form([&] {
    const auto product = [type](float x, float y) {
      float out = 0;
      gemm(type, {&x, 1, 1}, {&y, 1, 1}, 1, 1, 1, &out, 1, false);
      return out;
    };
    for (const auto& [from, to] : cases) {
      EXPECT_EQ(product(from, 1), to) << from;
      EXPECT_EQ(product(1, from), to) << from;
    }
    const uint32_t bits = 0x7FFFFFFF;  // adding to it would wrap around
    float nan = 0;
    std::memcpy(&nan, &bits, sizeof nan);
    EXPECT_TRUE(std::isnan(product(nan, 1)));
  });
}

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Gemm, InF16RoundsToEvenAndKeepsWhatIsNoNumber) {
  expect_rounded(ProductType::fp16, {{1.00048828125F, 1.0F},
                                     {1.00146484375F, 1.001953125F},
                                     {-1.0004884F, -1.0009765625F},
                                     {65504.0F, 65504.0F},
                                     {65519.99F, 65504.0F},
                                     {65520.0F, kInf},
                                     {-1e30F, -kInf},
                                     {kInf, kInf},
                                     {5.9604645e-8F, 5.9604645e-8F},
                                     {2.98e-8F, 0.0F},
                                     {-0.0F, 0.0F},
                                     {6.1e-5F, 6.09755516e-5F}});
}

TEST(Gemm, InBf16RoundsToEvenAndKeepsWhatIsNoNumber) {
  expect_rounded(ProductType::bf16, {{1.00390625F, 1.0F},
                                     {1.01171875F, 1.015625F},
                                     {1.003907F, 1.0078125F},
                                     {-1.00390625F, -1.0F},
                                     {kInf, kInf},
                                     {-kInf, -kInf},
                                     {3.4028235e38F, kInf},
                                     {0.0F, 0.0F},
                                     {0.1F, 0.10009765625F},
                                     {65280.0F, 65280.0F},
                                     {-0.3F, -0.30078125F}});
}

TEST(Gemm, InBf16OfUnitsTakesWhatIsBelowTheNormalNumbersAsZero) {
  if (!has_bf16_units()) GTEST_SKIP() << "no units for bf16 here";
  const auto product = [](float x, float y) {
    float out = 1;
    gemm(ProductType::bf16, {&x, 1, 1}, {&y, 1, 1}, 1, 1, 1, &out, 1, false);
    return out;
  };
  const auto check = [&] {
    EXPECT_EQ(product(0x1p-127F, 0x1p100F), 0.0F);
    EXPECT_EQ(product(0x1p100F, -0x1p-130F), 0.0F);
    EXPECT_EQ(product(0x1p-70F, 0x1p-60F), 0.0F);
    EXPECT_EQ(product(0x1p-126F, 1.0F), 0x1p-126F);
  };
  check();
  if (!use_tiles() || !cpu_info().has_avx512_bf16) return;
  const WithoutTiles scope;
  check();
}

class GemmOfType : public testing::TestWithParam<ProductType> {};
INSTANTIATE_TEST_SUITE_P(Products, GemmOfType, testing::ValuesIn(kTypes));

TEST_P(GemmOfType, AnOutputHasTheSameBitsWhateverIsBesideIt) {
  const ProductType type = GetParam();
  on_every_form([type] {
    const int64_t m = 120, n = 300, k = 1700;
    const Matrix a(m, k, Form::row_major, 1), b(k, n, Form::column_major, 2);
    Values whole(m * n);
    {
      const Threads one(1);
      gemm(type, a.view(), b.view(), m, n, k, whole.data(), n, false);
    }
    for (const int threads : {1, 2, 3}) {
      const Threads some(threads);
      for (const auto& [row, rows, column, columns] :
           std::vector<std::array<int64_t, 4>>{{0, m, 0, n}, {119, 1, 299, 1}, {3, 50, 31, 200}}) {
        Values part(rows * columns);
        MatrixView above = a.view(), left = b.view();
        above.data += row * above.row;
        left.data += column * left.column;
        gemm(type, above, left, rows, columns, k, part.data(), columns, false);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j)
            ASSERT_EQ(part[i * columns + j], whole[(row + i) * n + column + j]);
      }
    }
  });
}

TEST_P(GemmOfType, EmptySumsAreZerosAndStridesAreChecked) {
  const ProductType type = GetParam();
  const Matrix a(2, 3, Form::row_major, 1), b(3, 2, Form::row_major, 2);
  Values out(4, 5);
  const Values before = out;
  gemm(type, a.view(), b.view(), 2, 2, 0, out.data(), 2, true);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out[i], before[i]);
  gemm(type, a.view(), b.view(), 2, 2, 0, out.data(), 2, false);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out[i], 0);
  MatrixView wrong = a.view();
  wrong.column = 2;
  EXPECT_THROW(gemm(type, wrong, b.view(), 2, 2, 3, out.data(), 2, false), Error);
  EXPECT_THROW(gemm(type, a.view(), b.view(), 2, 2, 3, out.data(), 1, false), Error);
}

}  // namespace
}  // namespace tessera::kernels::gemm_test
