// Products with weights in blocks by kernels of CUDA, emulated on tensors of the CPU.
#include "tessera/ops/weights/packed_product.h"

#include <gtest/gtest.h>

#include "tessera/cuda/emulation_testing.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/blocks_testing.h"

namespace tessera::ops::packed_product_test {
namespace {

const std::vector<DType> kTypes = kernels::test::block_types();

struct Blocks {
  Tensor rows_OB, numbers_OI;
  Blocks(DType type, int64_t o, int64_t i) {
    const auto bytes =
        kernels::test::random_blocks(type, o * i / layout_of(type).block_elements, 5);
    rows_OB = at::empty({o, storage_bytes(type, i)}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), rows_OB.mutable_data_ptr<uint8_t>());
    numbers_OI = at::empty({o, i}, at::kFloat);
    kernels::dequantize(type, bytes.data(), o * i, numbers_OI.mutable_data_ptr<float>());
  }
};

TEST(PackedProduct, OfFewRowsIsTheProductWithTheDecodedMatrix) {
  const at::NoGradGuard none;
  for (const DType type : kTypes) {
    const int64_t width = 2 * std::max(layout_of(type).block_elements, 96), outputs = 19;
    const int64_t i = width / layout_of(type).block_elements * layout_of(type).block_elements;
    const Blocks w(type, outputs, i);
    const Tensor bias = at::arange(outputs, at::kFloat).cos();
    for (const int64_t rows : {1, 3, 8}) {
      const Tensor x = (at::arange(rows * i, at::kFloat) * 0.3f).sin().reshape({rows, 1, i});
      cuda::Emulator emulator;
      const Tensor y = packed_product(type, w.rows_OB, x, bias);
      EXPECT_EQ(emulator.launches().size(), 1u);
      const Tensor want =
          at::linear(x.to(at::kDouble), w.numbers_OI.to(at::kDouble), bias.to(at::kDouble));
      ASSERT_EQ(y.sizes(), want.sizes());
      // terms cancel: what is rounded are their magnitudes
      const Tensor magnitudes =
          at::linear(x.to(at::kDouble).abs(), w.numbers_OI.to(at::kDouble).abs());
      EXPECT_LE((y - want).abs().max().item<double>(), 2e-7 * magnitudes.max().item<double>())
          << name_of(type) << ", " << rows << " rows";
      // a view that begins at any float
      const Tensor shifted = at::cat({at::zeros({1}), x.flatten()}).narrow(0, 1, x.numel());
      EXPECT_TRUE(packed_product(type, w.rows_OB, shifted.reshape(x.sizes()), bias).equal(y));
      EXPECT_TRUE(packed_product(type, w.rows_OB.narrow(0, 3, 5), x, bias.narrow(0, 3, 5))
                      .equal(y.narrow(-1, 3, 5)));
    }
  }
}

TEST(UnpackedByKernel, HasTheValuesOfDequantize) {
  for (const DType type : kTypes) {
    const int64_t width = 256;
    const Blocks w(type, 7, width);
    const cuda::Emulator emulator;
    EXPECT_TRUE(unpacked_by_kernel(type, w.rows_OB).equal(w.numbers_OI)) << name_of(type);
    EXPECT_TRUE(unpacked_by_kernel(type, w.rows_OB.narrow(0, 2, 4), at::kBFloat16)
                    .equal(w.numbers_OI.narrow(0, 2, 4).to(at::kBFloat16)))
        << name_of(type);
  }
}

}  // namespace
}  // namespace tessera::ops::packed_product_test
