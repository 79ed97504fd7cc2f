// Every operation of each storage against its plain form: torch's operations on the decoded
// numbers.
#include "tessera/ops/weights/storage.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/blocks_testing.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/weights/block_storage.h"
#include "tessera/ops/weights/dense_storage.h"
#include "tessera/ops/weights/device_blocks.h"
#include "tessera/ops/weights/unpack.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops::storage_test {
namespace {

Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

double difference(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

/// kernels::test::random_blocks as uint8 [blocks, bytes].
Tensor random_blocks(DType type, int64_t blocks, uint64_t seed) {
  const auto bytes = kernels::test::random_blocks(type, blocks, static_cast<uint32_t>(seed));
  const Tensor out = at::empty({blocks, layout_of(type).block_bytes}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), out.mutable_data_ptr<uint8_t>());
  return out;
}

const std::vector<DType> kBlockTypes = kernels::test::block_types();

TEST(Unpack, HasTheBitsOfTheKernels) {
  for (const DType type : kBlockTypes) {
    const int64_t n = layout_of(type).block_elements;
    for (const int64_t rows : {1, 5}) {
      const Tensor blocks = random_blocks(type, rows * 3, 7 + rows);
      const Tensor want = at::empty({rows, 3 * n}, at::kFloat);
      kernels::dequantize(type, blocks.const_data_ptr(), rows * 3 * n,
                          want.mutable_data_ptr<float>());
      EXPECT_TRUE(at::equal(unpacked(type, blocks.reshape({rows, -1})), want)) << name_of(type);
      // one row of several, which begins anywhere
      EXPECT_TRUE(at::equal(unpacked(type, blocks.reshape({rows, -1}).narrow(0, rows - 1, 1)),
                            want.narrow(0, rows - 1, 1)))
          << name_of(type);
    }
    EXPECT_EQ(unpacked(type, random_blocks(type, 1, 1).narrow(0, 0, 0)).sizes(),
              at::IntArrayRef({0, n}));
  }
  EXPECT_ANY_THROW(unpacked(DType::bf16, at::zeros({1, 4}, at::kByte)));
}

// infinities, NaN, and scales that are zero or smaller than the smallest normal number
TEST(Unpack, HasTheValuesOfAnyBytes) {
  for (const DType type : kBlockTypes) {
    const int64_t blocks = 500, n = blocks * layout_of(type).block_elements;
    const Tensor bytes = at::empty({blocks, layout_of(type).block_bytes}, at::kByte);
    std::mt19937 random(9);
    for (int64_t i = 0; i < bytes.numel(); ++i)
      bytes.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(random());
    const Tensor want = at::empty({blocks, n / blocks}, at::kFloat);
    kernels::dequantize_ref(type, bytes.const_data_ptr(), n, want.mutable_data_ptr<float>());
    const Tensor got = unpacked(type, bytes);
    EXPECT_TRUE(at::allclose(got, want, 0, 0, true)) << name_of(type);
  }
}

/// An order of columns for each matrix.
ColumnsPtr some_order(int64_t matrices, int64_t width) {
  const auto all = std::make_shared<std::vector<int32_t>>();
  std::mt19937 random(5);
  for (int64_t m = 0; m < matrices; ++m) {
    std::vector<int32_t> one(static_cast<size_t>(width));
    std::iota(one.begin(), one.end(), 0);
    std::shuffle(one.begin(), one.end(), random);
    all->insert(all->end(), one.begin(), one.end());
  }
  return {all, all->data()};
}

struct Kind {
  std::string name;
  /// Of a shape whose last axis is a multiple of 256.
  std::function<StoragePtr(const std::vector<int64_t>& shape, uint64_t seed)> make;
};

StoragePtr in_blocks(DType type, const std::vector<int64_t>& shape, uint64_t seed, bool ordered) {
  const int64_t n = c10::multiply_integers(shape), width = shape.back();
  const auto bytes = std::make_shared<const Tensor>(
      random_blocks(type, n / layout_of(type).block_elements, seed).flatten());
  const ColumnsPtr columns =
      ordered ? some_order(shape.size() == 3 ? shape[0] : 1, width) : ColumnsPtr();
  return std::make_shared<const BlockStorage>(type, shape, bytes->const_data_ptr(), bytes, columns);
}

/// The form of another device, on the CPU, where it can be read.
StoragePtr packed(DType type, const std::vector<int64_t>& shape, uint64_t seed, bool ordered) {
  const StoragePtr from = in_blocks(type, shape, seed, ordered);
  const Tensor bytes =
      at::from_blob(const_cast<void*>(from->data()), {from->bytes()}, at::kByte).clone();
  const int64_t columns = shape.back() * (shape.size() == 3 ? shape[0] : 1);
  ColumnsPtr order;
  if (from->columns() != nullptr) {
    const auto own =
        std::make_shared<const std::vector<int32_t>>(from->columns(), from->columns() + columns);
    order = {own, own->data()};
  }
  return std::make_shared<const DeviceBlocks>(type, shape, bytes, order);
}

std::vector<Kind> kinds() {
  std::vector<Kind> out;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble})
    out.push_back(
        {fmt::format("dense {}", at::toString(type)), [type](const auto& shape, auto seed) {
           return std::make_shared<const DenseStorage>(drawn(shape, seed).to(type));
         }});
  for (const DType type : {DType::f32, DType::f16, DType::bf16})
    out.push_back({fmt::format("stored {}", name_of(type)), [type](const auto& shape, auto seed) {
                     return Weight::dense("w", drawn(shape, seed)).converted(type).storage();
                   }});
  for (const DType type : kBlockTypes)
    for (const bool ordered : {false, true}) {
      out.push_back(
          {fmt::format("packed {} {}", name_of(type), ordered),
           [=](const auto& shape, auto seed) { return packed(type, shape, seed, ordered); }});
      out.push_back(
          {fmt::format("blocks {} {}", name_of(type), ordered),
           [=](const auto& shape, auto seed) { return in_blocks(type, shape, seed, ordered); }});
    }
  return out;
}

TEST(Storage, EveryOperationIsThatOfTheNumbers) {
  const int64_t o = 24, i = 256;
  for (const Kind& kind : kinds())
    for (const bool gradients : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", kind.name, gradients ? "with gradients" : ""));
      const at::AutoGradMode mode(gradients);
      const StoragePtr w = kind.make({o, i}, 3);
      const Tensor numbers = w->tensor().to(at::kFloat);
      EXPECT_EQ(w->shape(), std::vector<int64_t>({o, i}));
      const Tensor bias = drawn({o}, 4);
      for (const int64_t n : {1, 40}) {
        const Tensor x = drawn({n, i}, 5), y = drawn({n, o}, 6);
        EXPECT_LT(difference(w->product(x, nullptr, bias, {}), at::linear(x, numbers, bias)), 1e-5);
        EXPECT_LT(difference(w->product(x, nullptr, Tensor(), {}), at::linear(x, numbers)), 1e-5);
        EXPECT_LT(difference(w->transposed(y), y.mm(numbers)), 1e-5);
        const Tensor wide = x.to(at::kDouble);
        EXPECT_LT(difference(w->product(wide, nullptr, Tensor(), {}),
                             at::linear(wide, numbers.to(at::kDouble))),
                  1e-6);
      }
      // 16-bit inputs are computed in float32 and returned in their type
      const Tensor half = drawn({3, i}, 5).to(at::kBFloat16);
      const Tensor of_half = w->product(half, nullptr, Tensor(), {});
      EXPECT_EQ(of_half.scalar_type(), at::kBFloat16);
      EXPECT_LT(difference(of_half.to(at::kFloat), at::linear(half.to(at::kFloat), numbers)), 5e-3);
      const Tensor heads = drawn({5, 4, i}, 8), of_heads = w->heads(heads, bias, {});
      for (int64_t h = 0; h < 4; ++h)
        EXPECT_LT(difference(of_heads.select(1, h),
                             at::linear(heads.select(1, h), numbers.narrow(0, 6 * h, 6),
                                        bias.narrow(0, 6 * h, 6))),
                  1e-5);
      const Tensor ids = at::tensor({7, 0, 23, 7}, at::kLong);
      EXPECT_TRUE(at::equal(w->rows(ids).to(at::kFloat), numbers.index_select(0, ids)));
      EXPECT_LT(difference(w->squared_rows(), numbers.to(at::kDouble).square().sum(-1)), 1e-6);
    }
}

TEST(Storage, ExpertsAreSlices) {
  const int64_t o = 9, i = 256;
  const std::vector<int64_t> offsets{0, 3, 3, 40};
  for (const Kind& kind : kinds())
    for (const bool gradients : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", kind.name, gradients ? "with gradients" : ""));
      const at::AutoGradMode mode(gradients);
      const StoragePtr w = kind.make({3, o, i}, 3);
      const Tensor numbers = w->tensor().to(at::kFloat), x = drawn({40, i}, 5),
                   bias = drawn({3, o}, 4);
      const Tensor y = w->grouped(x, nullptr, offsets, bias, {});
      for (const int64_t e : {0, 2}) {
        const StoragePtr own = w->slice(e);
        EXPECT_EQ(own->shape(), std::vector<int64_t>({o, i}));
        EXPECT_TRUE(at::equal(own->tensor().to(at::kFloat), numbers[e]));
        const int64_t begin = offsets[static_cast<size_t>(e)], n = e == 0 ? 3 : 37;
        EXPECT_LT(difference(y.narrow(0, begin, n),
                             at::linear(x.narrow(0, begin, n), numbers[e], bias[e])),
                  1e-5);
      }
      EXPECT_EQ(w->grouped(x.narrow(0, 0, 0), nullptr, {0, 0, 0, 0}, bias, {}).sizes(),
                at::IntArrayRef({0, o}));
    }
}

TEST(Storage, GradientsPassNumbersThatStayEncoded) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const StoragePtr w = kind.make({24, 256}, 3), experts = kind.make({3, 8, 256}, 4);
    const Tensor numbers = w->tensor().to(at::kFloat), all = experts->tensor().to(at::kFloat);
    for (const int64_t n : {2, 40}) {
      const Tensor x = drawn({n, 256}, 5).requires_grad_(true),
                   b = drawn({24}, 4).requires_grad_(true), dy = drawn({n, 24}, 6);
      const auto got = torch::autograd::grad({w->product(x, nullptr, b, {})}, {x, b}, {dy});
      EXPECT_LT(difference(got[0], dy.mm(numbers)), 1e-5);
      EXPECT_LT(difference(got[1], dy.sum(0)), 1e-5);
      const Tensor dz = drawn({n, 8}, 7);
      const auto of = torch::autograd::grad(
          {experts->grouped(x, nullptr, {0, 1, 1, n}, Tensor(), {})}, {x}, {dz});
      EXPECT_LT(difference(of[0].narrow(0, 1, n - 1), dz.narrow(0, 1, n - 1).mm(all[2])), 1e-5);
    }
  }
}

/// A storage that counts how often its numbers are decoded.
class Counted final : public Storage {
 public:
  Counted() : Storage(DType::q8_0, {2, 3, 32}), numbers_(drawn({2, 3, 32}, 3)) {}
  explicit Counted(Tensor numbers)
      : Storage(DType::q8_0, numbers.sizes().vec()), numbers_(numbers) {}
  at::Device device() const override { return at::kCPU; }
  Tensor tensor() const override {
    ++decoded;
    return numbers_.clone();
  }
  StoragePtr slice(int64_t index) const override {
    ++slices;
    return std::make_shared<const Counted>(numbers_[index]);
  }
  StoragePtr to(at::Device) const override { return shared_from_this(); }
  mutable std::atomic<int> decoded = 0, slices = 0;

 private:
  Tensor numbers_;
};

TEST(Storage, PlainFormsDecodeOnce) {
  const auto experts = std::make_shared<const Counted>();
  const Tensor x = drawn({4, 32}, 1);
  for (int i = 0; i < 3; ++i) experts->grouped(x, nullptr, {0, 2, 4}, Tensor(), {});
  EXPECT_EQ(experts->slices, 2);
  const auto matrix = std::make_shared<const Counted>(drawn({3, 32}, 3));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        matrix->product(x, nullptr, Tensor(), {});
        matrix->transposed(drawn({4, 3}, 2));
        matrix->rows(at::tensor({1, 2}, at::kLong));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(matrix->decoded, 1);
}

// what an optimizer writes is read at the next call
TEST(Storage, TrainableNumbersAreReadAgain) {
  const Tensor numbers = drawn({3, 32}, 3).requires_grad_(true), x = drawn({4, 32}, 1);
  const auto w = std::make_shared<const DenseStorage>(numbers);
  EXPECT_TRUE(w->trainable());
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    w->product(x.to(type), nullptr, Tensor(), {});
    {
      const at::NoGradGuard guard;
      Tensor(numbers).mul_(2);
    }
    const Tensor y = w->product(x.to(type), nullptr, Tensor(), {});
    EXPECT_LT(difference(y.to(at::kFloat), x.mm(numbers.t())), 1e-2) << type;
  }
}

TEST(Storage, BlocksKeepTheirBytesFromDeviceToHost) {
  for (const bool ordered : {false, true}) {
    const StoragePtr from = in_blocks(DType::q4_k, {3, 8, 512}, 3, ordered),
                     there = packed(DType::q4_k, {3, 8, 512}, 3, ordered);
    EXPECT_EQ(there->bytes(), from->bytes());
    EXPECT_EQ(there->data(), nullptr);
    EXPECT_TRUE(at::equal(there->tensor(), from->tensor()));
    EXPECT_TRUE(at::equal(there->slice(1)->tensor(), from->slice(1)->tensor()));
    EXPECT_EQ(there->columns() != nullptr, ordered);
    // rows of two matrices
    const auto& blocks = dynamic_cast<const DeviceBlocks&>(*there);
    EXPECT_TRUE(at::equal(blocks.decode(6, 7), from->tensor().reshape({24, 512}).narrow(0, 6, 7)));
  }
  EXPECT_EQ(in_blocks(DType::q4_0, {2, 256}, 1, false)->to(at::kCPU)->dtype(), DType::q4_0);
}

}  // namespace
}  // namespace tessera::ops::storage_test
