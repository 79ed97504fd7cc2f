#include "tessera/kernels/weights/digits.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/forms_testing.h"
#include "tessera/kernels/weights/matmul.h"

namespace tessera::kernels::digits_test {
namespace {

constexpr DType kTypes[] = {
    DType::q4_0,   DType::q4_1,      DType::q5_0,      DType::q5_1,  DType::q8_0,  DType::q2_k,
    DType::q3_k,   DType::q4_k,      DType::q5_k,      DType::q6_k,  DType::mxfp4, DType::iq4_nl,
    DType::iq4_xs, DType::scaled_u4, DType::scaled_i8, DType::tq1_0, DType::tq2_0};
constexpr Arithmetic kDigits[] = {Arithmetic::int15, Arithmetic::int8, Arithmetic::int8_row};

const char* name_of_digits(Arithmetic digits) {
  return digits == Arithmetic::int15  ? "two digits"
         : digits == Arithmetic::int8 ? "one digit"
                                      : "one digit by row";
}

struct Weights {
  DType type;
  int64_t n, k;
  std::vector<uint8_t> bytes;  // the first at an odd address
  std::vector<float> values;
  const uint8_t* data() const { return bytes.data() + 1; }
};

// Any bytes whose values lie between 1e-20 and `most`, or are zero.
Weights drawn_weights(DType type, int64_t n, int64_t k, float most = 1e6f, uint64_t seed = 11) {
  const DTypeLayout& layout = layout_of(type);
  Weights w{type, n, k, std::vector<uint8_t>(at(storage_bytes(type, n * k) + 1)),
            std::vector<float>(at(n * k))};
  const RandomKey key(seed);
  uint64_t counter = 0;
  const auto usual = [&](float v) {
    return v == 0 || (std::abs(v) > 1e-20f && std::abs(v) < most);
  };
  for (int64_t i = 0; i < n * k / layout.block_elements; ++i) {
    uint8_t* block = w.bytes.data() + 1 + i * layout.block_bytes;
    float* values = w.values.data() + i * layout.block_elements;
    do {
      for (int b = 0; b < layout.block_bytes; ++b)
        block[b] = static_cast<uint8_t>(key.bits(counter++));
      dequantize_ref(type, block, layout.block_elements, values);
    } while (!std::all_of(values, values + layout.block_elements, usual));
  }
  return w;
}

std::vector<float> product(
    const float* x, int64_t m, const Weights& w, Arithmetic digits, const float* bias = nullptr) {
  const auto bytes = at(rounded_bytes(m, w.k));
  std::vector<uint8_t> memory(bytes + 64);
  void* lines = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  const RoundedRows rows = round_rows(x, m, w.k, w.k, digits, lines);
  std::vector<float> y(at(m * w.n + 1), 77.0f);
  digit_matmul(rows, w.type, w.data(), w.n, bias, y.data(), w.n);
  EXPECT_EQ(y.back(), 77.0f) << "wrote past the end";
  y.pop_back();
  return y;
}

// --- the definition, a run at a time -------------------------------------------------------------

/// A run of codes: value = d (code - offset) + m.
struct Run {
  float d, m;
  int n, code[32];
};

uint16_t half_bits(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

/// Run `r` of a block: d and m as the format says, and the codes of its values.
Run run_of(DType type, const uint8_t* b, int r) {
  const auto half = [&](int at) { return f16_to_float(half_bits(b + at)); };
  const auto scale_k4 = [&](int j) {
    const uint8_t* s = b + 4;
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
  };
  const auto min_k4 = [&](int j) {
    const uint8_t* s = b + 4;
    return j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
  };
  Run out{0, 0, 32, {}};
  switch (type) {
    case DType::q4_0:
    case DType::q5_0:
    case DType::q8_0:
    case DType::iq4_nl:
      out.d = half(0);
      break;
    case DType::iq4_xs: {
      const int low = b[4 + r / 2] >> (4 * (r % 2)) & 15, high = b[2 + r / 4] >> (2 * (r % 4)) & 3;
      out.d = half(0) * static_cast<float>((low | high << 4) - 32);
      break;
    }
    case DType::q4_1:
    case DType::q5_1:
      out.d = half(0);
      out.m = half(2);
      break;
    case DType::mxfp4:
      out.d = half_of_e8m0(b[0]);
      break;
    case DType::tq1_0:
      out.d = half(52);
      break;
    case DType::tq2_0:
      out.d = half(64);
      break;
    case DType::scaled_u4:
    case DType::scaled_i8: {
      int16_t zero = b[4];
      if (type == DType::scaled_i8) std::memcpy(&zero, b + 4, 2);
      std::memcpy(&out.d, b, 4);
      out.m = -(out.d * static_cast<float>(zero));
      break;
    }
    case DType::q4_k:
    case DType::q5_k:
      out.d = half(0) * static_cast<float>(scale_k4(r));
      out.m = -(half(2) * static_cast<float>(min_k4(r)));
      break;
    case DType::q2_k:
      out.d = half(80) * static_cast<float>(b[r] & 15);
      out.m = -(half(82) * static_cast<float>(b[r] >> 4));
      out.n = 16;
      break;
    case DType::q3_k: {
      const uint8_t* s = b + 96;
      const int low = r < 8 ? s[r] & 15 : s[r - 8] >> 4, high = (s[8 + r % 4] >> (2 * (r / 4))) & 3;
      out.d = half(108) * static_cast<float>((low | high << 4) - 32);
      out.n = 16;
      break;
    }
    default:
      out.d = half(208) * static_cast<float>(static_cast<int8_t>(b[192 + r]));
      out.n = 16;
  }
  // d (code - offset) without a minimum is exact
  const DTypeLayout& layout = layout_of(type);
  std::vector<uint8_t> block(b, b + layout.block_bytes);
  const auto clear = [&](size_t at) { block[at] = block[at + 1] = 0; };
  if (type == DType::q2_k)
    clear(82);
  else if (type == DType::scaled_u4)
    block[4] = 0;
  else if (type == DType::scaled_i8)
    clear(4);
  else if (out.m != 0)
    clear(2);
  std::vector<float> values(at(layout.block_elements));
  dequantize_ref(type, block.data(), layout.block_elements, values.data());
  for (int e = 0; e < out.n; ++e)
    out.code[e] = out.d == 0 ? 0 : static_cast<int>(std::lround(values[at(r * out.n + e)] / out.d));
  return out;
}

/// One output as digits.h defines it.
float defined(const float* x, const Weights& w, int64_t j, Arithmetic digits) {
  const DTypeLayout& layout = layout_of(w.type);
  const float most_v = digits == Arithmetic::int15 ? 127 * 128 : 127;
  const bool minima = w.type == DType::q4_1 || w.type == DType::q5_1 || w.type == DType::q2_k ||
                      w.type == DType::q4_k || w.type == DType::q5_k ||
                      w.type == DType::scaled_u4 || w.type == DType::scaled_i8;
  const bool by_row = digits == Arithmetic::int8_row;
  float of_row = kLeastRowMagnitude;
  for (int64_t c = 0; c < w.k; ++c) of_row = std::max(of_row, std::abs(x[c]));
  float sum = 0;
  for (int64_t c = 0; c < w.k;) {
    const int64_t element = j * w.k + c;
    const uint8_t* block = w.data() + element / layout.block_elements * layout.block_bytes;
    const bool short_runs = w.type == DType::q2_k || w.type == DType::q3_k || w.type == DType::q6_k;
    const int in_block = static_cast<int>(element % layout.block_elements);
    const Run run = run_of(w.type, block, in_block / (short_runs ? 16 : 32));
    // x of the 32 numbers
    const float* xs = x + c / 32 * 32;
    float most = 0;
    for (int e = 0; e < 32; ++e) most = std::max(most, std::abs(xs[e]));
    if (by_row) most = of_row;
    const bool none = !by_row && most < 0x1p-112f;
    const float inverse = none ? 0 : most_v / most, s = none ? 0 : most / most_v;
    int64_t integers = 0, of_x = 0;
    for (int e = 0; e < run.n; ++e) {
      const auto v = static_cast<int64_t>(std::nearbyint(x[c + e] * inverse));
      integers += run.code[e] * v;
      of_x += v;
    }
    sum = std::fma(static_cast<float>(integers), run.d * s, sum);
    if (minima) sum = std::fma(run.m, s * static_cast<float>(of_x), sum);
    c += run.n;
  }
  return sum;
}

int64_t block_of(DType type) {
  return layout_of(type).block_elements;
}

// Fewer columns than are multiplied side by side, and more than a panel has; few rows and many.
TEST(Digits, EqualTheDefinitionBitForBit) {
  for (const DType type : kTypes)
    for (const int64_t k :
         block_of(type) == 256 ? std::vector<int64_t>{256, 768} : std::vector<int64_t>{32, 96, 608})
      for (const int64_t n : {1, 7, 41}) {
        const Weights w = drawn_weights(type, n, k, 1e3f);
        const Values bias(n, 13);
        Values x(19 * k, 12);
        for (int64_t c = 0; c < 32; ++c) x[k + c] = 0;           // a block of zeros
        for (int64_t c = 0; c < 32; ++c) x[2 * k + c] *= 1e30f;  // and a large one
        for (int64_t c = 0; c < 32; ++c) x[3 * k + c] *= 1e-33f;
        for (const Arithmetic digits : kDigits) {
          std::vector<float> want(at(19 * n));
          parallel_for(1, 1, [&](int64_t, int64_t) {  // where denormal numbers are zeros
            for (int64_t i = 0; i < 19; ++i)
              for (int64_t j = 0; j < n; ++j)
                want[at(i * n + j)] = defined(x.data() + i * k, w, j, digits) + bias[j];
          });
          on_every_form([&] {
            for (const int64_t m : {1, 2, 5, 9, 19}) {
              const std::vector<float> y = product(x.data(), m, w, digits, bias.data());
              expect_same_bits(y.data(), want.data(), m * n,
                               fmt::format("{}, {}, k {}, n {}, m {}", name_of(type),
                                           name_of_digits(digits), k, n, m));
            }
          });
        }
      }
}

// Alone, in groups, all at once, from other places in memory, on other threads.
TEST(Digits, SameBitsForAnyNumberOfRowsAndThreads) {
  constexpr int64_t kRows = 23, kColumns = 37;
  for (const DType type : kTypes) {
    const int64_t k = block_of(type) == 256 ? 1024 : 576;
    const Weights w = drawn_weights(type, kColumns, k);
    const Values x(kRows * k, 5);
    for (const Arithmetic digits : kDigits) {
      std::optional<std::vector<float>> one;
      on_every_form([&] {
        std::vector<float> alone;
        {
          const Threads scope(1);
          for (int64_t i = 0; i < kRows; ++i) {
            const std::vector<float> y = product(x.data() + i * k, 1, w, digits);
            alone.insert(alone.end(), y.begin(), y.end());
          }
        }
        const std::string what = fmt::format("{}, {}", name_of(type), name_of_digits(digits));
        if (!one) one = alone;
        expect_same_bits(alone.data(), one->data(), kRows * kColumns, what + " on another target");
        for (const int threads : {1, 3})
          for (const int64_t m : {int64_t{3}, int64_t{8}, kRows}) {
            const Threads scope(threads);
            for (int64_t i = 0; i < kRows; i += m) {
              const int64_t rows = std::min(m, kRows - i);
              const std::vector<float> y = product(x.data() + i * k, rows, w, digits);
              expect_same_bits(y.data(), one->data() + i * kColumns, rows * kColumns,
                               fmt::format("{} in groups of {}, {} threads", what, m, threads));
            }
          }
      });
    }
  }
}

// As many rows as tiles pay for, and some more than a thread takes at a time.
TEST(Digits, OfManyRowsHaveTheSameBitsInTiles) {
  if (!use_tiles()) GTEST_SKIP() << "no AMX here";
  constexpr int64_t kMost = 133;
  for (const DType type : kTypes)
    for (const int64_t k :
         block_of(type) == 256 ? std::vector<int64_t>{256, 768} : std::vector<int64_t>{32, 96, 576})
      for (const int64_t n : {1, 33, 100}) {
        const Weights w = drawn_weights(type, n, k, 1e3f);
        const Values bias(n, 13);
        Values x(kMost * k, 12);
        for (int64_t c = 0; c < 32; ++c) x[70 * k + c] *= 1e-33f;
        for (const Arithmetic digits : kDigits) {
          std::vector<float> want;
          {
            const WithoutTiles scope;
            want = product(x.data(), kMost, w, digits, bias.data());
          }
          for (const int threads : {1, 3})
            for (const int64_t m : {int64_t{16}, int64_t{64}, int64_t{65}, int64_t{81}, kMost}) {
              const Threads scope(threads);
              const std::vector<float> y = product(x.data(), m, w, digits, bias.data());
              expect_same_bits(y.data(), want.data(), m * n,
                               fmt::format("{}, {}, k {}, n {}, m {}, {} threads", name_of(type),
                                           name_of_digits(digits), k, n, m, threads));
            }
        }
      }
}

// The sums of the largest codes and digits: 32 * 31 * 127 * 128, which float32 still has.
TEST(Digits, OfTheLargestNumbersAreExact) {
  constexpr int64_t kRows = 64, kColumns = 3, k = 64;
  for (const DType type : {DType::q5_1, DType::q5_0}) {
    // all codes 31, or 0, which stands for -16
    Weights w{
        type, kColumns, k, std::vector<uint8_t>(at(storage_bytes(type, kColumns * k) + 1)), {}};
    const int64_t bytes = layout_of(type).block_bytes;
    for (int64_t i = 0; i < kColumns * k / 32; ++i) {
      uint8_t* block = w.bytes.data() + 1 + i * bytes;
      std::fill_n(block, bytes, type == DType::q5_1 ? uint8_t{0xff} : uint8_t{0});
      block[0] = 0;
      block[1] = 0x3c;  // d = 1
      if (type == DType::q5_1) block[2] = block[3] = 0;
    }
    Values x(kRows * k);
    for (int64_t i = 0; i < kRows * k; ++i) x[i] = i / k % 2 == 0 ? 127 * 128 : -127 * 128;
    const float each = type == DType::q5_1 ? 31 : -16;
    on_every_form([&] {
      const std::vector<float> y = product(x.data(), kRows, w, Arithmetic::int15);
      for (int64_t i = 0; i < kRows * kColumns; ++i)
        ASSERT_EQ(y[at(i)], (i / kColumns % 2 == 0 ? 1 : -1) * each * 127 * 128 * k) << i;
    });
  }
}

// Against the product of the same weights and float x, relative to the outputs' own size.
TEST(Digits, DifferFromTheProductOfFloatsByTheStatedError) {
  constexpr int64_t kRows = 16, kColumns = 64;
  for (const DType type : kTypes) {
    const int64_t k = 1024;
    const Weights w = drawn_weights(type, kColumns, k, 10.0f);
    const Values x(kRows * k, 7);
    for (const Arithmetic digits : kDigits) {
      const std::vector<float> y = product(x.data(), kRows, w, digits);
      double error = 0, size = 0;
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t j = 0; j < kColumns; ++j) {
          double want = 0;
          for (int64_t c = 0; c < k; ++c)
            want +=
                static_cast<double>(x[i * k + c]) * static_cast<double>(w.values[at(j * k + c)]);
          error += std::pow(want - static_cast<double>(y[at(i * kColumns + j)]), 2);
          size += want * want;
        }
      const double relative = std::sqrt(error / size);
      EXPECT_LT(relative, digits == Arithmetic::int15 ? 1e-4 : 2e-2)
          << name_of(type) << ", " << name_of_digits(digits);
      // no more digits than were asked for
      EXPECT_GT(relative, digits == Arithmetic::int15 ? 1e-6 : 1e-3)
          << name_of(type) << ", " << name_of_digits(digits);
    }
  }
}

TEST(Digits, NumbersThatAreNotFiniteGoOnAsInFloat) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t n = 9;
  for (const DType type : kTypes) {
    const int64_t k = 512;
    const Weights w = drawn_weights(type, n, k);
    for (const int64_t m : {3, 12, 70}) {
      Values x(m * k, 5);
      x[k + 40] = kInfinity;
      x[2 * k - 1] = -3e38f;
      x[2 * k + 500] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> floats(at(m * n));
      on_every_form([&] {
        matmul(x.data(), m, k, k, type, w.data(), n, nullptr, floats.data(), n);
        const std::vector<float> y = product(x.data(), m, w, Arithmetic::int15),
                                 clean = product(x.data(), 1, w, Arithmetic::int15);
        expect_same_bits(y.data() + n, floats.data() + n, 2 * n, std::string(name_of(type)));
        expect_same_bits(y.data(), clean.data(), n, "the row beside them");
      });
    }
  }
}

TEST(Digits, ScalesThatAreNotFiniteAreSeen) {
  Weights w{
      DType::q8_0, 1, 64, std::vector<uint8_t>(at(storage_bytes(DType::q8_0, 64) + 1), 1), {}};
  w.bytes[35] = 0;  // the second block's scale: infinity
  w.bytes[36] = 0x7c;
  const Values x(12 * 64, 3);
  on_every_form([&] {
    for (const int64_t m : {1, 12})
      for (const float y : product(x.data(), m, w, Arithmetic::int15))
        EXPECT_FALSE(std::isfinite(y));
  });
}

TEST(Digits, StridedRowsAndEmptyShapes) {
  const Weights w = drawn_weights(DType::q5_1, 5, 64);
  const Values x(4 * 80, 6);
  alignas(64) uint8_t memory[2048];
  ASSERT_LE(rounded_bytes(4, 64), 2048);
  std::vector<float> y(4 * 9, -1.0f);
  const RoundedRows rows = round_rows(x.data(), 4, 64, 80, Arithmetic::int15, memory);
  digit_matmul(rows, w.type, w.data(), 5, nullptr, y.data(), 9);
  for (int64_t i = 0; i < 4; ++i) {
    const std::vector<float> dense = product(x.data() + 80 * i, 1, w, Arithmetic::int15);
    expect_same_bits(y.data() + 9 * i, dense.data(), 5, "strided");
    for (int64_t j = 5; j < 9; ++j) EXPECT_EQ(y[at(9 * i + j)], -1.0f);
  }
  const RoundedRows none = round_rows(x.data(), 0, 64, 64, Arithmetic::int15, memory);
  EXPECT_NO_THROW(digit_matmul(none, w.type, w.data(), 5, nullptr, nullptr, 5));
}

TEST(Digits, RefuseBrokenShapes) {
  alignas(64) uint8_t memory[4096];
  float x[256] = {}, y[8];
  EXPECT_THROW(round_rows(x, 1, 31, 31, Arithmetic::int15, memory), Error);
  EXPECT_THROW(round_rows(x, 2, 32, 31, Arithmetic::int15, memory), Error);
  EXPECT_THROW(round_rows(x, 1, 32, 32, Arithmetic::float32, memory), Error);
  const RoundedRows rows = round_rows(x, 1, 32, 32, Arithmetic::int15, memory);
  EXPECT_THROW(digit_matmul(rows, DType::f32, x, 1, nullptr, y, 1), Error);
  EXPECT_THROW(digit_matmul(rows, DType::q4_k, x, 1, nullptr, y, 1), Error);
}

}  // namespace
}  // namespace tessera::kernels::digits_test
