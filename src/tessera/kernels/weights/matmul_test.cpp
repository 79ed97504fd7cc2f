#include "tessera/kernels/weights/matmul.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::matmul_test {
namespace {

constexpr DType kTypes[] = {DType::f32,       DType::f16,       DType::bf16,       DType::q4_0,
                            DType::q4_1,      DType::q5_0,      DType::q5_1,       DType::q8_0,
                            DType::q2_k,      DType::q3_k,      DType::q4_k,       DType::q5_k,
                            DType::q6_k,      DType::mxfp4,     DType::iq4_nl,     DType::iq4_xs,
                            DType::scaled_u4, DType::scaled_i8, DType::scaled_e4m3, DType::iq1_s, DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s, DType::tq1_0, DType::tq2_0};

struct Weights {
  DType type;
  int64_t n, k;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

Weights make_weights(DType type, int64_t n, int64_t k) {
  Weights w{type, n, k, std::vector<uint8_t>(at(storage_bytes(type, n * k))),
            std::vector<float>(at(n * k))};
  const RandomKey key(9);
  // 0x2f keeps 16-bit scales small and finite; float32 needs numbers
  for (size_t i = 0; i < w.bytes.size(); ++i) w.bytes[i] = static_cast<uint8_t>(key.bits(i)) & 0x2f;
  if (type == DType::f32) {
    const Values numbers(n * k, 9);
    std::memcpy(w.bytes.data(), numbers.data(), w.bytes.size());
  }
  dequantize_ref(type, w.bytes.data(), n * k, w.values.data());
  return w;
}

// the sum in double, and the sum of magnitudes that bounds rounding
void expect_product(const Values& x,
                    int64_t m,
                    const Weights& w,
                    const float* bias,
                    const float* y,
                    int64_t y_stride) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < w.n; ++j) {
      double sum = bias ? bias[j] : 0, magnitude = std::abs(sum);
      for (int64_t c = 0; c < w.k; ++c) {
        const double term =
            static_cast<double>(x[i * w.k + c]) * static_cast<double>(w.values[at(j * w.k + c)]);
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(y[i * y_stride + j], sum, 1e-6 * magnitude + 1e-30) << i << ", " << j;
    }
}

TEST(Matmul, EveryTypeAndTarget) {
  for (const DType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    const int64_t k = layout_of(type).block_elements == 256 ? 768 : 416;
    const Weights w = make_weights(type, 23, k);
    const Values x(17 * k, 2);
    const Values bias(23, 3);
    std::vector<float> y(at(17 * 23));
    on_every_target([&] {
      for (const int64_t m : {1, 5, 17}) {
        matmul(x.data(), m, k, k, type, w.bytes.data(), 23, bias.data(), y.data(), 23);
        expect_product(x, m, w, bias.data(), y.data(), 23);
      }
    });
  }
}

TEST(Matmul, OddSizesAndMisalignedStarts) {
  for (const int64_t k : odd_sizes())
    for (const int64_t n : {1, 7, 8, 65})
      for (const int64_t offset : {0, 1, 3}) {
        SCOPED_TRACE(fmt::format("k {} n {} offset {}", k, n, offset));
        const Weights w = make_weights(DType::f32, n, k);
        std::vector<uint8_t> shifted(w.bytes.size() + 16);
        std::memcpy(shifted.data() + 4 * offset, w.bytes.data(), w.bytes.size());
        const Values x(11 * k, 4, 1, offset);
        std::vector<float> y(at(11 * n + 1), 55.0f);
        on_every_target([&] {
          for (const int64_t m : {1, 2, 11}) {
            matmul(x.data(), m, k, k, DType::f32, shifted.data() + 4 * offset, n, nullptr, y.data(),
                   n);
            expect_product(x, m, w, nullptr, y.data(), n);
          }
          EXPECT_EQ(y.back(), 55.0f) << "wrote past the end";
        });
      }
}

TEST(Matmul, HalfTypesWithOddDepth) {
  for (const DType type : {DType::f16, DType::bf16})
    for (const int64_t k : odd_sizes()) {
      const Weights w = make_weights(type, 9, k);
      const Values x(9 * k, 4);
      std::vector<float> y(81);
      on_every_target([&] {
        for (const int64_t m : {1, 9}) {
          matmul(x.data(), m, k, k, type, w.bytes.data(), 9, nullptr, y.data(), 9);
          expect_product(x, m, w, nullptr, y.data(), 9);
        }
      });
    }
}

// Any numbers a file may hold, between 1e-20 and 1e6 or zero, one block drawn after another. The
// first byte lies at an odd address.
Weights drawn_weights(DType type, int64_t n, int64_t k) {
  const DTypeLayout& layout = layout_of(type);
  const int64_t bytes = layout.block_bytes;
  Weights w{type, n, k, std::vector<uint8_t>(at(storage_bytes(type, n * k) + 1)),
            std::vector<float>(at(n * k))};
  const RandomKey key(11);
  uint64_t counter = 0;
  const auto usual = [](float v) { return v == 0 || (std::abs(v) > 1e-20f && std::abs(v) < 1e6f); };
  for (int64_t i = 0; i < n * k / layout.block_elements; ++i) {
    uint8_t* block = w.bytes.data() + 1 + i * bytes;
    float* values = w.values.data() + i * layout.block_elements;
    do {
      for (int64_t b = 0; b < bytes; ++b) block[b] = static_cast<uint8_t>(key.bits(counter++));
      dequantize_ref(type, block, layout.block_elements, values);
    } while (!std::all_of(values, values + layout.block_elements, usual));
  }
  return w;
}

// The product as matmul.h defines it: lanes, then their sum in halves and in pairs.
float product_by_lanes(const float* x, const float* w, int64_t k) {
  const std::string target = current_target();
  const bool fused = target == "AVX3" || target == "AVX2";
  const size_t lanes = target == "AVX3" ? 16 : target == "AVX2" ? 8 : 4;
  std::vector<float> sum(lanes, 0.0f);
  for (int64_t c = 0; c < k; ++c) {
    float& lane = sum[at(c) % lanes];
    lane = fused ? std::fma(x[c], w[c], lane) : x[c] * w[c] + lane;
  }
  for (size_t half = lanes / 2; half >= 4; half /= 2)
    for (size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Narrow and wide rows, fewer columns than are multiplied side by side, few rows and more.
TEST(Matmul, EqualsTheDefinitionBitForBit) {
  const std::vector<int64_t> depths_of_256{256, 1024, 2560}, depths_of_32{32, 96, 576, 2080},
      depths{1, 17, 65, 1000};
  for (const DType type : kTypes) {
    const int64_t block = layout_of(type).block_elements;
    for (const int64_t k : block == 256 ? depths_of_256 : block == 32 ? depths_of_32 : depths)
      for (const int64_t n : {1, 2, 3, 5, 13}) {
        const Weights w = drawn_weights(type, n, k);
        const Values x(9 * k, 12);
        const Values bias(n, 13);
        on_every_target([&] {
          std::vector<float> y(at(9 * n + 1)), want(at(9 * n));
          for (int64_t i = 0; i < 9; ++i)
            for (int64_t j = 0; j < n; ++j)
              want[at(i * n + j)] =
                  product_by_lanes(x.data() + i * k, w.values.data() + j * k, k) + bias[j];
          for (int64_t m = 1; m <= 9; ++m) {
            std::fill(y.begin(), y.end(), 77.0f);
            matmul(x.data(), m, k, k, type, w.bytes.data() + 1, n, bias.data(), y.data(), n);
            expect_same_bits(y.data(), want.data(), m * n,
                             fmt::format("{}, k {}, n {}, m {}", name_of(type), k, n, m));
            EXPECT_EQ(y[at(m * n)], 77.0f) << "wrote past the end";
          }
        });
      }
  }
}

// One row at a time, in groups, all at once, from other places in memory, on other threads.
TEST(Matmul, SameBitsForAnyNumberOfRowsAndThreads) {
  constexpr int64_t kRows = 200;  // more than one pass over a panel
  for (const DType type : kTypes) {
    const int64_t block = layout_of(type).block_elements;
    for (const int64_t k : {block == 256  ? int64_t{1536}
                            : block == 32 ? int64_t{1184}
                                          : int64_t{1101}}) {
      const int64_t n = 37;
      const Weights w = make_weights(type, n, k);
      const Values x(kRows * k, 5);
      std::vector<float> one(at(kRows * n)), all(at(kRows * n));
      on_every_target([&] {
        const auto run = [&](int64_t row, int64_t m, int threads, std::vector<float>& y) {
          const Threads scope(threads);
          matmul(x.data() + row * k, m, k, k, type, w.bytes.data(), n, nullptr, y.data() + row * n,
                 n);
        };
        const bool portable = current_target() == "EMU128";
        const int64_t rows = portable ? 20 : kRows;
        for (int64_t i = 0; i < rows; ++i) run(i, 1, 1, one);
        const std::string what(name_of(type));
        run(0, rows, 2, all);
        expect_same_bits(all.data(), one.data(), rows * n, what + " in one call, two threads");
        run(0, rows, 1, all);
        expect_same_bits(all.data(), one.data(), rows * n, what + " in one call, one thread");
        for (const int64_t m : {2, 3, 7, 8, 64}) {
          std::fill(all.begin(), all.end(), 0.0f);
          for (int64_t i = 0; i < rows; i += m) run(i, std::min(m, rows - i), 2, all);
          expect_same_bits(all.data(), one.data(), rows * n,
                           fmt::format("{} in groups of {}", what, m));
        }
      });
    }
  }
}

TEST(Matmul, StridedRowsAndEmptyShapes) {
  const Weights w = make_weights(DType::f32, 5, 10);
  const Values x(4 * 16, 6);
  std::vector<float> y(4 * 9, -1.0f), dense(20), packed(40);
  for (int64_t i = 0; i < 4; ++i)
    std::copy(x.data() + 16 * i, x.data() + 16 * i + 10, packed.data() + 10 * i);
  matmul(x.data(), 4, 10, 16, DType::f32, w.bytes.data(), 5, nullptr, y.data(), 9);
  matmul(packed.data(), 4, 10, 10, DType::f32, w.bytes.data(), 5, nullptr, dense.data(), 5);
  for (int64_t i = 0; i < 4; ++i) {
    expect_same_bits(y.data() + 9 * i, dense.data() + 5 * i, 5, "strided");
    for (int64_t j = 5; j < 9; ++j) EXPECT_EQ(y[at(9 * i + j)], -1.0f);
  }
  const float bias[5] = {1, 2, 3, 4, 5};
  matmul(nullptr, 2, 0, 0, DType::f32, nullptr, 5, bias, dense.data(), 5);  // an empty sum
  EXPECT_EQ(dense[6], 2.0f);
  EXPECT_NO_THROW(matmul(nullptr, 0, 10, 10, DType::f32, w.bytes.data(), 5, nullptr, nullptr, 5));
}

TEST(Matmul, RefusesBrokenShapes) {
  float y[8];
  EXPECT_THROW(matmul(y, 1, 31, 31, DType::q8_0, y, 1, nullptr, y, 1), Error);
  EXPECT_THROW(matmul(y, 1, 1, 1, DType::i8, y, 1, nullptr, y, 1), Error);
  EXPECT_THROW(matmul(y, 2, 4, 3, DType::f32, y, 1, nullptr, y, 1), Error);
  EXPECT_THROW(matmul(y, -1, 4, 4, DType::f32, y, 1, nullptr, y, 1), Error);
}

}  // namespace
}  // namespace tessera::kernels::matmul_test
