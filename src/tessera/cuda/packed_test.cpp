// Kernels of weights in blocks, emulated: their values are those of the goldens, bit for bit, and
// products those of the decoded numbers.
#include "tessera/cuda/packed.h"

#include <gtest/gtest.h>

#include <bit>

#include "tessera/base/half.h"
#include "tessera/cuda/kernels_testing.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/blocks_testing.h"

namespace tessera::cuda::packed_test {
namespace {

/// Rows of whole blocks of random bytes, and the numbers that they are.
struct Matrix {
  std::vector<uint8_t> bytes;
  std::vector<float> numbers;
  Matrix(DType type, int64_t rows, int64_t width) {
    bytes = kernels::test::random_blocks(type, rows * width / layout_of(type).block_elements,
                                         static_cast<uint32_t>(rows + width));
    numbers.resize(static_cast<size_t>(rows * width));
    kernels::dequantize_ref(type, bytes.data(), rows * width, numbers.data());
  }
};

// a storage type that kernels do not read would be decoded by torch's operations on a GPU
TEST(PackedTypes, AreAllBlockTypes) {
  EXPECT_EQ(std::vector<DType>(std::begin(kPackedTypes), std::end(kPackedTypes)),
            kernels::test::block_types());
  for (const DType type : kernels::test::block_types())
    EXPECT_TRUE(reads_packed(type)) << name_of(type);
  for (const DType type : {DType::f32, DType::bf16, DType::i8})
    EXPECT_FALSE(reads_packed(type)) << name_of(type);
}

TEST(Unpack, GivesTheValuesOfTheGoldensBitForBit) {
  const Emulator emulator;
  for (const DType type : kPackedTypes) {
    const auto golden = kernels::test::block_golden(type);
    const auto n = static_cast<int64_t>(golden.values.size());
    std::vector<float> got = unwritten(n);
    unpack(type, UnpackArguments<float>{golden.blocks.data(), got.data(), n, 1}, {});
    std::vector<uint16_t> rounded(golden.values.size(), 0xffff);
    unpack(type, UnpackArguments<uint16_t>{golden.blocks.data(), rounded.data(), n, 1}, {});
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(golden.values[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << name_of(type) << ", number " << i;
        continue;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(golden.values[i]))
          << name_of(type) << ", number " << i;
      ASSERT_EQ(rounded[i], float_to_bf16(golden.values[i])) << name_of(type) << ", number " << i;
    }
  }
}

TEST(Unpack, ReadsRowsOfAnyNumberOfBlocks) {
  for (const Order order : {Order::forwards, Order::backwards})
    for (const DType type : kPackedTypes)
      for (const int64_t blocks : {1, 3, 9}) {
        const Emulator emulator(order);
        const int64_t width = blocks * layout_of(type).block_elements, rows = 5;
        const Matrix w(type, rows, width);
        std::vector<float> got = unwritten(rows * width);
        unpack(type, UnpackArguments<float>{w.bytes.data(), got.data(), width, rows}, {});
        EXPECT_EQ(got, w.numbers) << name_of(type) << ", width " << width;
      }
}

/// y of `rows` rows from row `first` of x on.
std::vector<float> product(DType type,
                           const Matrix& w,
                           const std::vector<float>& x,
                           const std::vector<float>& bias,
                           int64_t width,
                           int64_t outputs,
                           int64_t first,
                           int32_t rows,
                           Order order) {
  const Emulator emulator(order);
  std::vector<float> y = unwritten(rows * outputs);
  packed_product(type,
                 {x.data() + first * width, w.bytes.data(), bias.empty() ? nullptr : bias.data(),
                  y.data(), width, outputs, rows},
                 {});
  return y;
}

TEST(PackedProduct, IsTheProductWithTheDecodedNumbers) {
  struct Case {
    int64_t blocks, outputs;
    int32_t rows;
  };
  for (const DType type : kPackedTypes)
    for (const auto& [blocks, outputs, rows] :
         {Case{1, 1, 1}, {1, 7, 2}, {3, 9, 8}, {9, 17, 5}, {10, 8, 3}}) {
      const int64_t width = blocks * layout_of(type).block_elements;
      const Matrix w(type, outputs, width);
      const std::vector<float> x = numbers(rows * width, .7), bias = numbers(outputs, .3);
      std::vector<double> want(static_cast<size_t>(rows * outputs));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < outputs; ++o) {
          double sum = bias[static_cast<size_t>(o)];
          for (int64_t c = 0; c < width; ++c)
            sum += static_cast<double>(x[static_cast<size_t>(r * width + c)]) *
                   w.numbers[static_cast<size_t>(o * width + c)];
          want[static_cast<size_t>(r * outputs + o)] = sum;
        }
      const std::string what = std::string(name_of(type)) + " of " + std::to_string(width) +
                               " columns, " + std::to_string(rows) + " rows: y";
      const auto got = product(type, w, x, bias, width, outputs, 0, rows, Order::forwards);
      expect_close(got, want, 2e-6, what);
      EXPECT_EQ(product(type, w, x, bias, width, outputs, 0, rows, Order::backwards), got)
          << what << " depends on the order of threads";
      // a row alone has the bits that it has among others
      for (int32_t r = 0; r < rows; ++r) {
        const auto alone = product(type, w, x, bias, width, outputs, r, 1, Order::forwards);
        for (int64_t o = 0; o < outputs; ++o)
          ASSERT_EQ(alone[static_cast<size_t>(o)], got[static_cast<size_t>(r * outputs + o)])
              << what << "[" << r << "][" << o << "]";
      }
    }
}

TEST(PackedProduct, WithoutRowsOrWithTooManyAndOtherTypes) {
  Emulator emulator;
  packed_product(DType::q4_0, {.width = 32, .outputs = 4, .rows = 0}, {});
  EXPECT_TRUE(emulator.launches().empty());
  EXPECT_ANY_THROW(packed_product(DType::q4_0, {.width = 32, .outputs = 4, .rows = 9}, {}));
  EXPECT_ANY_THROW(packed_product(DType::f32, {.width = 32, .outputs = 4, .rows = 1}, {}));
}

}  // namespace
}  // namespace tessera::cuda::packed_test
