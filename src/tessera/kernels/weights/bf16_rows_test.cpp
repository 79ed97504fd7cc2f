#include "tessera/kernels/weights/bf16_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tessera/base/cpu.h"
#include "tessera/base/error.h"
#include "tessera/kernels/weights/forms_testing.h"
#include "tessera/kernels/weights/matmul.h"

namespace tessera::kernels::bf16_rows_test {
namespace {

constexpr Arithmetic kKinds[] = {Arithmetic::bf16_pair, Arithmetic::bf16};

struct Weights {
  int64_t n, k;
  std::vector<uint16_t> bits;
  std::vector<float> values;
};

// the upper halves of floats around zero
Weights drawn_weights(int64_t n, int64_t k, uint64_t seed = 11) {
  Weights w{n, k, std::vector<uint16_t>(at(n * k)), std::vector<float>(at(n * k))};
  const Values values(n * k, seed);
  for (int64_t i = 0; i < n * k; ++i) {
    uint32_t word;
    std::memcpy(&word, values.data() + i, 4);
    word &= 0xffff0000;
    w.bits[at(i)] = static_cast<uint16_t>(word >> 16);
    std::memcpy(&w.values[at(i)], &word, 4);
  }
  return w;
}

std::vector<float> product(
    const float* x, int64_t m, const Weights& w, Arithmetic kind, const float* bias = nullptr) {
  std::vector<uint8_t> memory(at(rounded_bytes(m, w.k)) + 64);
  void* lines = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  const RoundedRows rows = round_rows(x, m, w.k, w.k, kind, lines);
  std::vector<float> y(at(m * w.n + 1), 77.0f);
  digit_matmul(rows, DType::bf16, w.bits.data(), w.n, bias, y.data(), w.n);
  EXPECT_EQ(y.back(), 77.0f) << "wrote past the end";
  y.pop_back();
  return y;
}

// One rounding is at most 2^-9 of a number, two 2^-18; float32 sums add 2^-20 of all magnitudes.
TEST(Bf16Rows, DifferFromTheExactProductByTheStatedError) {
  for (const int64_t k : {32, 96, 2048, 2112, 4160})
    for (const int64_t n : {1, 31, 45, 100}) {
      const Weights w = drawn_weights(n, k);
      const Values bias(n, 13);
      constexpr int64_t kMost = 62;
      const Values x(kMost * k, 12);
      std::vector<double> want(at(kMost * n)), size(at(kMost * n));
      for (int64_t i = 0; i < kMost; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t c = 0; c < k; ++c) {
            const double term =
                static_cast<double>(x[i * k + c]) * static_cast<double>(w.values[at(j * k + c)]);
            want[at(i * n + j)] += term;
            size[at(i * n + j)] += std::abs(term);
          }
      on_every_form([&] {
        for (const Arithmetic kind : kKinds)
          for (const int64_t m : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{9}, kMost}) {
            const double bound = (kind == Arithmetic::bf16 ? 0x1p-9 : 0x1p-18) + 0x1p-20;
            const std::vector<float> y = product(x.data(), m, w, kind, bias.data());
            for (int64_t i = 0; i < m * n; ++i)
              ASSERT_NEAR(y[at(i)], want[at(i)] + static_cast<double>(bias[i % n]),
                          bound * (size[at(i)] + 1))
                  << "k " << k << ", n " << n << ", m " << m << ", " << i;
          }
      });
    }
}

// Alone, in groups, all at once, on other threads, which are given other columns.
TEST(Bf16Rows, SameBitsForAnyNumberOfRowsAndThreads) {
  constexpr int64_t kRows = 61;
  for (const int64_t k : {64, 2048, 2080, 4224})
    for (const int64_t n : {5, 37, 160, 333}) {
      const Weights w = drawn_weights(n, k);
      const Values x(kRows * k, 5), bias(n, 13);
      for (const Arithmetic kind : kKinds) {
        std::vector<float> alone;
        {
          const Threads scope(1);
          for (int64_t i = 0; i < kRows; ++i) {
            const std::vector<float> y = product(x.data() + i * k, 1, w, kind, bias.data());
            alone.insert(alone.end(), y.begin(), y.end());
          }
        }
        for (const int threads : {1, 3})
          for (const int64_t m : {2, 3, 4, 5, 6, 7, 8, 20, 61}) {
            const Threads scope(threads);
            for (int64_t i = 0; i < kRows; i += m) {
              const int64_t rows = std::min(m, kRows - i);
              const std::vector<float> y = product(x.data() + i * k, rows, w, kind, bias.data());
              expect_same_bits(
                  y.data(), alone.data() + i * n, rows * n,
                  fmt::format("k {}, n {}, groups of {}, {} threads", k, n, m, threads));
            }
          }
      }
    }
}

// Divergence of softmax(x W^T) from that of float32 products: of the default at most 1e-6.
TEST(Bf16Rows, OfAPairKeepDistributions) {
  constexpr int64_t kRows = 16, kColumns = 2000, k = 2048;
  const Weights w = drawn_weights(kColumns, k);
  Values x(kRows * k, 7);
  for (int64_t i = 0; i < kRows * k; ++i) x[i] *= 0.066f;  // logits of standard deviation 3
  std::vector<float> exact(at(kRows * kColumns));
  matmul(x.data(), kRows, k, k, DType::bf16, w.bits.data(), kColumns, nullptr, exact.data(),
         kColumns);
  const auto divergence = [&](const std::vector<float>& y) {
    double sum = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const float *p = exact.data() + i * kColumns, *q = y.data() + i * kColumns;
      double p_sum = 0, q_sum = 0, mean = 0;
      for (int64_t j = 0; j < kColumns; ++j) {
        p_sum += std::exp(static_cast<double>(p[j]));
        q_sum += std::exp(static_cast<double>(q[j]));
      }
      for (int64_t j = 0; j < kColumns; ++j)
        mean += std::exp(static_cast<double>(p[j])) / p_sum *
                (static_cast<double>(p[j]) - static_cast<double>(q[j]));
      sum += mean + std::log(q_sum / p_sum);
    }
    return sum / kRows;
  };
  EXPECT_LT(divergence(product(x.data(), kRows, w, Arithmetic::bf16_pair)), 1e-6);
  EXPECT_LT(divergence(product(x.data(), kRows, w, Arithmetic::bf16)), 1e-3);
}

TEST(Bf16Rows, NumbersThatAreNotFiniteStayInTheirRow) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t n = 40, k = 96;
  Weights w = drawn_weights(n, k);
  for (uint16_t& bits : w.bits) bits &= 0x7fff;
  for (const int64_t m : {3, 20}) {
    Values x(m * k, 5);
    const std::vector<float> clean(x.data(), x.data() + k);
    x[k + 40] = kInfinity;
    x[3 * k - 1] = std::numeric_limits<float>::quiet_NaN();
    on_every_form([&] {
      for (const Arithmetic kind : kKinds) {
        const std::vector<float> y = product(x.data(), m, w, kind),
                                 alone = product(clean.data(), 1, w, kind);
        expect_same_bits(y.data(), alone.data(), n, "the row before them");
        for (int64_t j = 0; j < n; ++j) {
          EXPECT_EQ(y[at(n + j)], kInfinity);
          EXPECT_TRUE(std::isnan(y[at(2 * n + j)]));
        }
      }
    });
  }
}

TEST(Bf16Rows, AreTheArithmeticWhereTheyPay) {
  const bool pay = bf16_rows_pay(64);
  EXPECT_TRUE(!pay || cpu_info().has_avx512_bf16);
  EXPECT_FALSE(bf16_rows_pay(65));
  const auto of = [](DType type, Arithmetic wished) { return arithmetic_of(type, 64, wished); };
  const auto where_they_pay = [&](Arithmetic a) { return pay ? a : Arithmetic::float32; };
  EXPECT_EQ(of(DType::bf16, Arithmetic::int15),
            bf16_pairs_pay(64) ? Arithmetic::bf16_pair : Arithmetic::float32);
  EXPECT_EQ(of(DType::bf16, Arithmetic::int8), where_they_pay(Arithmetic::bf16));
  for (const Arithmetic wished : {Arithmetic::float32, Arithmetic::int8_row})
    EXPECT_EQ(of(DType::bf16, wished), Arithmetic::float32);
  EXPECT_EQ(of(DType::f16, Arithmetic::int15), Arithmetic::float32);
  EXPECT_EQ(of(DType::q8_0, Arithmetic::int15), Arithmetic::int15);
}

TEST(Bf16Rows, RefuseOtherWeights) {
  alignas(64) uint8_t memory[4096];
  float x[64] = {}, y[8];
  const RoundedRows rows = round_rows(x, 1, 64, 64, Arithmetic::bf16_pair, memory);
  EXPECT_THROW(digit_matmul(rows, DType::q8_0, x, 1, nullptr, y, 1), Error);
  const RoundedRows digits = round_rows(x, 1, 64, 64, Arithmetic::int15, memory);
  EXPECT_THROW(digit_matmul(digits, DType::bf16, x, 1, nullptr, y, 1), Error);
}

}  // namespace
}  // namespace tessera::kernels::bf16_rows_test
