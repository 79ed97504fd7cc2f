#include "tessera/ops/light_tensor.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::ops {
namespace {

/// Tensors of several layouts: contiguous, with gaps, transposed, spread, without elements, a
/// number.
std::vector<Tensor> layouts(at::ScalarType type) {
  const Tensor x = at::arange(2 * 3 * 4, at::kFloat).reshape({2, 3, 4}).to(type);
  return {x,
          x.narrow(2, 1, 2),
          x.transpose(0, 2),
          x.select(1, 1),
          x.slice(2, 0, 4, 2),
          x.narrow(0, 0, 1).expand({5, 3, 4}),
          x.narrow(1, 0, 0),
          x.select(0, 0).select(0, 1).select(0, 2),
          x.unsqueeze(1)};
}

void expect_same(const light::MaybeTensor& light, const Tensor& torch) {
  ASSERT_TRUE(light.has_value());
  EXPECT_EQ(light->sizes(), torch.sizes());
  EXPECT_EQ(light->strides(), torch.strides());
  EXPECT_EQ(light->storage_offset(), torch.storage_offset());
  EXPECT_EQ(light->storage().nbytes(), torch.storage().nbytes());
  EXPECT_EQ(light->key_set(), torch.key_set());
  EXPECT_EQ(light->scalar_type(), torch.scalar_type());
  EXPECT_EQ(light->device(), torch.device());
  EXPECT_EQ(light->is_contiguous(), torch.is_contiguous());
  EXPECT_EQ(light->is_inference(), torch.is_inference());
  EXPECT_TRUE(at::equal(*light, torch));
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble,   at::kLong, at::kInt,
                                     at::kHalf,  at::kBFloat16, at::kByte, at::kBool};

TEST(LightTensor, ViewsAreLibtorchs) {
  const at::NoGradGuard no_gradients;
  for (const Tensor& x : layouts(at::kFloat)) {
    for (int64_t axis = -x.dim() - 1; axis <= x.dim(); ++axis)
      expect_same(light::unsqueeze(x, axis), x.unsqueeze(axis));
    for (int64_t axis = -x.dim(); axis < x.dim(); ++axis) {
      const int64_t size = x.size(axis);
      for (int64_t begin = -size; begin <= size; ++begin)
        for (int64_t n = 0; n <= size - (begin < 0 ? begin + size : begin); ++n) {
          expect_same(light::narrow(x, axis, begin, n), x.narrow(axis, begin, n));
          EXPECT_TRUE(light::narrow(x, axis, begin, n)->is_alias_of(x));
        }
      for (int64_t i = -size; i < size; ++i)
        expect_same(light::select(x, axis, i), x.select(axis, i));
    }
  }
}

TEST(LightTensor, ClonesAndConvertsAsLibtorchDoes) {
  const at::NoGradGuard no_gradients;
  for (const at::ScalarType type : kTypes)
    for (const Tensor& x : layouts(type)) {
      const auto clone = light::clone(x, at::MemoryFormat::Contiguous);
      expect_same(clone, x.clone(at::MemoryFormat::Contiguous));
      EXPECT_FALSE(clone->is_alias_of(x) && x.numel() > 0);
      if (x.is_non_overlapping_and_dense()) {
        expect_same(light::clone(x, {}), x.clone());
        EXPECT_EQ(light::empty_like(x, {}, {}, {}, {}, {})->strides(), at::empty_like(x).strides());
      } else {
        EXPECT_FALSE(light::clone(x, {}).has_value());
      }
      for (const at::ScalarType to : kTypes)
        if (const auto y = light::to_type(x, to, false, {})) expect_same(y, x.to(to));
    }
  // a denormal number stays what it is
  const Tensor tiny = at::full({3}, 1e-40, at::kFloat);
  expect_same(light::to_type(tiny, at::kDouble, false, {}), tiny.to(at::kDouble));
  expect_same(light::to_type(tiny.to(at::kDouble), at::kFloat, false, {}), tiny);
  EXPECT_TRUE(light::to_type(tiny, at::kFloat, false, {})->is_same(tiny));
  // every exponent, ties and what is too large for 16 bits
  const Tensor bits = at::arange(0, int64_t{1} << 32, (int64_t{1} << 12) - 1024, at::kLong);
  const Tensor all = bits.to(at::kInt).view(at::kFloat);
  const Tensor numbers = all.index({all.isnan().logical_not()}).contiguous();
  for (int64_t begin = 0; begin + (1 << 19) <= numbers.numel(); begin += 1 << 19)
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
      const Tensor part = numbers.narrow(0, begin, 1 << 19);
      const auto narrow = light::to_type(part, type, false, {});
      expect_same(narrow, part.to(type).clone());
      expect_same(light::to_type(*narrow, at::kFloat, false, {}), narrow->to(at::kFloat));
    }
  EXPECT_FALSE(light::to_type(tiny, at::kFloat, true, {})->is_same(tiny));
}

TEST(LightTensor, CopiesAsLibtorchDoes) {
  const at::NoGradGuard no_gradients;
  const Tensor big = at::arange(300 * 700, at::kFloat).reshape({300, 700});
  Tensor a = at::zeros({300, 900}), b = at::zeros({300, 900});
  ASSERT_TRUE(light::assign(a.narrow(1, 100, 700), big));
  b.narrow(1, 100, 700).copy_(big);
  EXPECT_TRUE(at::equal(a, b));
  // one row and one number for all
  for (const Tensor& from :
       {big.select(0, 3), big.select(0, 2).select(0, 1), big.narrow(1, 5, 1)}) {
    ASSERT_TRUE(light::assign(a.narrow(1, 0, 700), from));
    b.narrow(1, 0, 700).copy_(from);
    EXPECT_TRUE(at::equal(a, b));
  }
  EXPECT_FALSE(light::assign(a, big));                                // of another shape
  EXPECT_FALSE(light::assign(a.narrow(1, 1, 5), a.narrow(1, 0, 5)));  // of the same memory
  EXPECT_FALSE(light::assign(a.narrow(0, 0, 1).expand({4, 900}), b.narrow(0, 0, 4)));
}

TEST(LightTensor, JoinsAsLibtorchDoes) {
  const at::NoGradGuard no_gradients;
  for (const at::ScalarType type : kTypes)
    for (const Tensor& x : layouts(type))
      for (int64_t axis = -x.dim(); axis < x.dim(); ++axis) {
        const std::vector<Tensor> parts{x, x.narrow(axis, 0, x.size(axis) / 2), x};
        if (const auto y = light::cat(parts, axis))
          expect_same(y, at::cat(parts, axis));
        else
          EXPECT_GT(x.dim(), 3);
      }
  EXPECT_FALSE(light::cat(std::vector<Tensor>{at::zeros({0}), at::zeros({2, 3})}, 0).has_value());
  EXPECT_FALSE(
      light::cat(std::vector<Tensor>{at::zeros({2}), at::zeros({2}, at::kDouble)}, 0).has_value());
}

TEST(LightTensor, MemoryIsLibtorchs) {
  const std::vector<c10::SymInt> shape{3, 0, 2};
  for (const bool inference : {false, true}) {
    const c10::InferenceMode mode(inference);
    const auto x = light::empty(shape, at::kHalf, {}, {}, {}, {});
    expect_same(x, at::empty({3, 0, 2}, at::kHalf));
    expect_same(light::empty({}, {}, {}, at::Device(at::kCPU), false, {})->fill_(1), at::ones({}));
  }
  for (const at::ScalarType type : {at::kLong, at::kFloat, at::kInt})
    expect_same(light::tensor({1, -2, 3}, type), at::tensor({1, -2, 3}, type));
  EXPECT_FALSE(light::empty(shape, {}, at::kSparse, {}, {}, {}).has_value());
  EXPECT_FALSE(light::empty(shape, {}, {}, at::Device(at::kMeta), {}, {}).has_value());
}

TEST(LightTensor, ReshapesAndPicksRowsAsLibtorchDoes) {
  const at::NoGradGuard no_gradients;
  const Tensor x = at::arange(24, at::kFloat).reshape({2, 3, 4});
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {24}, {-1}, {6, 4}, {2, -1, 2}, {1, 24, 1}, {2, 3, 4}, {3, 1, -1}}) {
    const std::vector<c10::SymInt> sizes(shape.begin(), shape.end());
    expect_same(light::reshape(x.select(0, 1).expand({2, 3, 4}).contiguous(), sizes),
                x.select(0, 1).expand({2, 3, 4}).contiguous().reshape(shape));
    EXPECT_TRUE(light::reshape(x, sizes)->is_alias_of(x));
  }
  expect_same(light::reshape(x.narrow(0, 1, 0), std::vector<c10::SymInt>{3, 0}),
              x.narrow(0, 1, 0).reshape({3, 0}));
  EXPECT_FALSE(light::reshape(x, std::vector<c10::SymInt>{5, -1}).has_value());
  EXPECT_FALSE(light::reshape(x, std::vector<c10::SymInt>{23}).has_value());
  EXPECT_FALSE(light::reshape(x.transpose(0, 1), std::vector<c10::SymInt>{24}).has_value());

  const Tensor rows = at::tensor({1, 0, 1, 1}, at::kLong);
  expect_same(light::index_select(x, 0, rows), x.index_select(0, rows));
  expect_same(light::index_select(x, 0, rows.narrow(0, 0, 0)),
              x.index_select(0, rows.narrow(0, 0, 0)));
  EXPECT_FALSE(light::index_select(x, 0, at::tensor({2}, at::kLong)).has_value());
  EXPECT_FALSE(light::index_select(x, 1, rows).has_value());
  expect_same(light::zeros_like(x.transpose(0, 2), {}, {}, {}, {}, {}),
              at::zeros_like(x.transpose(0, 2)));
}

TEST(LightTensor, AddsAndMultipliesAsLibtorchDoes) {
  const at::NoGradGuard no_gradients;
  const Tensor x = at::randn({37, 19}), y = at::randn({37, 19}) * 1e-39, whole = at::arange(7);
  expect_same(light::add(x, y, 1), x + y);
  expect_same(light::add(y, y, 1), y + y);
  for (const at::Scalar& z : {at::Scalar(3), at::Scalar(0.1), at::Scalar(1e-3), at::Scalar(true)}) {
    expect_same(light::add_scalar(x, z, 1), x + z);
    expect_same(light::mul_scalar(x, z), x * z);
    expect_same(light::mul_scalar(y, z), y * z);
  }
  expect_same(light::add_scalar(whole, 5, 1), whole + 5);
  expect_same(light::max(whole), whole.max());
  EXPECT_FALSE(light::add(x, y, 2).has_value());
  EXPECT_FALSE(light::add(x, y.select(0, 0), 1).has_value());
  EXPECT_FALSE(light::add(x, y.to(at::kDouble), 1).has_value());
  EXPECT_FALSE(light::add_scalar(whole, 0.5, 1).has_value());
  EXPECT_FALSE(light::mul_scalar(whole, 2).has_value());
  EXPECT_FALSE(light::max(x).has_value());
}

TEST(LightTensor, LeavesTheRestToLibtorch) {
  const Tensor x = at::ones({2, 3});
  EXPECT_FALSE(light::narrow(x, 2, 0, 1).has_value());
  EXPECT_FALSE(light::narrow(x, 0, 1, 2).has_value());
  EXPECT_FALSE(light::narrow(x, 0, 0, -1).has_value());
  EXPECT_FALSE(light::select(x, 0, 2).has_value());
  EXPECT_FALSE(light::unsqueeze(x, 3).has_value());
  for (const Tensor& special :
       {Tensor(), at::ones({2, 3}).requires_grad_(), at::empty({2, 3}, at::kMeta), x.to_sparse(),
        at::conj(at::ones({2, 3}, at::kComplexFloat))}) {
    EXPECT_FALSE(light::narrow(special, 0, 0, 1).has_value());
    EXPECT_FALSE(light::clone(special, {}).has_value());
    EXPECT_FALSE(light::assign(x, special));
  }
}

TEST(LightTensor, HoldsTheOwnerOfItsMemory) {
  auto numbers = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::weak_ptr<const void> held = numbers;
  Tensor x = tensor_over(numbers->data(), {2, 3}, at::kFloat, numbers);
  expect_same(x, at::from_blob(numbers->data(), {2, 3}, at::kFloat));
  numbers.reset();
  const Tensor row = x.select(0, 1);
  x = Tensor();
  EXPECT_FALSE(held.expired());
  EXPECT_EQ(row.sum().item<float>(), 15);
}

}  // namespace
}  // namespace tessera::ops
