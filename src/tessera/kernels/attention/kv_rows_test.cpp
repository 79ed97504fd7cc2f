#include "tessera/kernels/attention/kv_rows.h"

#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/float8.h"
#include "tessera/base/half.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/blocks.h"

namespace tessera::kernels::kv_rows_test {
namespace {

/// The value of an e4m3 code by its definition.
double e4m3(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(Float8, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_to_float(bits)));
      continue;
    }
    EXPECT_EQ(static_cast<double>(e4m3_to_float(bits)), e4m3(code)) << code;
    EXPECT_EQ(std::signbit(e4m3_to_float(bits)), code >= 128) << code;
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(bits)), bits) << code;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), kLargestE4m3);
}

TEST(Float8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = e4m3(code), high = e4m3(code + 1), middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 0x80}) {
      const auto rounded = [&](double x) {
        return float_to_e4m3(static_cast<float>(sign != 0 ? -x : x)) ^ sign;
      };
      EXPECT_EQ(rounded(middle), even) << middle;
      EXPECT_EQ(rounded(low + (middle - low) * 0.999), code) << low;
      EXPECT_EQ(rounded(middle + (high - middle) * 0.001), code + 1) << high;
    }
  }
  EXPECT_EQ(float_to_e4m3(464), 0x7e);
  for (const float x : {465.0f, 1e30f, std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_EQ(float_to_e4m3(x) & 0x7f, 0x7f) << x;
}

TEST(KvRows, CodesAreTheNearestMultiplesOfTheScale) {
  for (const int64_t width : {1, 7, 64, 65})
    for (const double size : {1e-20, 1.0, 1e20}) {
      const Values x(3 * width, 1, size);
      for (const DType type : {DType::i8, DType::u8}) {
        const int64_t bytes = kv_row_bytes(type, width);
        ASSERT_EQ(bytes, 4 + width);
        std::vector<uint8_t> rows(at(3 * bytes));
        write_kv_rows(type, x.data(), 3, width, rows.data());
        for (int64_t r = 0; r < 3; ++r) {
          std::vector<float> back(at(width));
          read_kv_row(type, rows.data() + r * bytes, width, back.data());
          double most = 0;
          for (int64_t i = 0; i < width; ++i)
            most = std::max(most, std::abs(static_cast<double>(x[r * width + i])));
          for (int64_t i = 0; i < width; ++i) {
            const double want = static_cast<double>(x[r * width + i]);
            // half a step: of 127 equal ones; of e4m3, a 16th of the number, or half the least step
            const double step = type == DType::i8
                                    ? most / 254
                                    : std::max(std::abs(want) / 16, most / 448 * 0x1p-10);
            EXPECT_LE(std::abs(static_cast<double>(back[at(i)]) - want), step * 1.0001);
          }
        }
      }
    }
}

TEST(KvRows, BlocksOfFourBitsAreTheNearestOfSixteenSteps) {
  for (const int64_t width : {1, 31, 32, 64, 65})
    for (const double size : {1e-3, 1.0, 1e4}) {
      const Values x(3 * width, 1, size);
      const int64_t bytes = kv_row_bytes(DType::i16, width);
      ASSERT_EQ(bytes, (width + 31) / 32 * 20);
      std::vector<uint8_t> rows(at(3 * bytes));
      write_kv_rows(DType::i16, x.data(), 3, width, rows.data());
      for (int64_t r = 0; r < 3; ++r) {
        std::vector<float> back(at(width));
        read_kv_row(DType::i16, rows.data() + r * bytes, width, back.data());
        for (int64_t first = 0; first < width; first += 32) {
          const float* of_block = x.data() + r * width + first;
          const int64_t n = std::min<int64_t>(32, width - first);
          const auto [least, most] = std::minmax_element(of_block, of_block + n);
          // half a step, and the rounding of step and least number to halves
          const double bound = (*most - *least) / 30.0 * 1.01 +
                               0x1p-10 * std::max(std::abs(*least), std::abs(*most)) + 1e-7;
          for (int64_t i = 0; i < n; ++i)
            EXPECT_LE(std::abs(back[at(first + i)] - of_block[i]), bound);
        }
      }
    }
  // the layout is that of q4_1, which has a reader of its own
  const Values x(64);
  std::vector<uint8_t> row(at(kv_row_bytes(DType::i16, 64)));
  write_kv_rows(DType::i16, x.data(), 1, 64, row.data());
  std::vector<float> back(64), blocks(64);
  read_kv_row(DType::i16, row.data(), 64, back.data());
  dequantize_ref(DType::q4_1, row.data(), 64, blocks.data());
  EXPECT_EQ(back, blocks);
  // what no half holds
  std::vector<float> large(32, 1.0f);
  large[3] = 1e5f;
  write_kv_rows(DType::i16, large.data(), 1, 32, row.data());
  read_kv_row(DType::i16, row.data(), 32, back.data());
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(back[static_cast<size_t>(i)]));
}

TEST(KvRows, TheFirstNumbersOfARowAreItsFirstCodes) {
  const Values x(16);
  for (const DType type : {DType::f16, DType::i8, DType::u8, DType::i16}) {
    std::vector<uint8_t> row(at(kv_row_bytes(type, 16)));
    write_kv_rows(type, x.data(), 1, 16, row.data());
    std::vector<float> all(16), some(5);
    read_kv_row(type, row.data(), 16, all.data());
    read_kv_row(type, row.data(), 5, some.data());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
}

TEST(KvRows, HalvesAreTheNearestOnEveryTarget) {
  std::vector<float> x;
  for (const float size :
       {0.0f, 1e-9f, 3e-8f, 2e-6f, 6.1e-5f, 1.0f, 3e3f, 65504.0f, 65520.0f, 1e9f})
    for (int i = 0; i < 37; ++i) x.push_back((i % 2 == 0 ? size : -size) * (1 + i * 0.0123f));
  x.push_back(std::numeric_limits<float>::infinity());
  for (const std::string& target : available_targets()) {
    const TargetScope scope(target);
    for (const size_t n : {size_t{1}, size_t{15}, size_t{33}, x.size()}) {
      std::vector<uint16_t> row(n);
      write_kv_rows(DType::f16, x.data(), 1, static_cast<int64_t>(n), row.data());
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(row[i], float_to_f16(x[i])) << target << " " << x[i];
    }
  }
}

TEST(KvRows, ZerosAndNumbersThatAreNotFinite) {
  for (const DType type : {DType::i8, DType::u8}) {
    const std::vector<float> zeros(6), infinite{1, 2, std::numeric_limits<float>::infinity()};
    std::vector<uint8_t> row(10);
    std::vector<float> back(6, 1.0f);
    write_kv_rows(type, zeros.data(), 1, 6, row.data());
    read_kv_row(type, row.data(), 6, back.data());
    EXPECT_EQ(back, zeros);
    write_kv_rows(type, infinite.data(), 1, 3, row.data());
    read_kv_row(type, row.data(), 3, back.data());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(back[static_cast<size_t>(i)]));
  }
  EXPECT_THROW(kv_row_bytes(DType::q4_k, 8), Error);
}

}  // namespace
}  // namespace tessera::kernels::kv_rows_test
