#include "tessera/ops/weights/weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <numeric>
#include <random>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/ops/live_bytes_testing.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/weights/input_squares.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::ops::weight_test {
namespace {

using kernels::Arithmetic;

/// Of calls that read inputs so where no gradient is recorded.
ProductSettings in(Arithmetic arithmetic) {
  return {.arithmetic = arithmetic};
}
const ProductSettings kWhole{.whole_texts = true};

Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

/// Blocks of Q4_0 [.., I] by hand: a scale of half precision, then 16 bytes of two codes each.
Weight q4_0(std::vector<int64_t> shape, uint64_t seed) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  auto bytes = std::make_shared<std::vector<uint8_t>>();
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (int64_t block = 0; block < n / 32; ++block) {
    const uint16_t scale = static_cast<uint16_t>(0x2400 + random() % 0x400);  // 2^-6 to 2^-5
    bytes->push_back(static_cast<uint8_t>(scale & 0xff));
    bytes->push_back(static_cast<uint8_t>(scale >> 8));
    for (int i = 0; i < 16; ++i) bytes->push_back(static_cast<uint8_t>(random() & 0xff));
  }
  const void* data = bytes->data();
  return Weight::stored("q", DType::q4_0, std::move(shape), data, bytes);
}

double error(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

TEST(Weight, GradientThroughFrozenBlocksEqualsThatThroughTheirNumbers) {
  for (const int64_t o : {1, 7, 64, 1500, 4000})
    for (const int64_t n : {1, 5, 40}) {  // from 32 rows on by tiles
      const Weight w = q4_0({o, 96}, 3);
      const Tensor x = drawn({n, 2, 96}, 1).requires_grad_(true),
                   same = x.detach().clone().requires_grad_(true);
      const Tensor bias = drawn({o}, 2).requires_grad_(true),
                   same_bias = bias.detach().clone().requires_grad_(true);
      const Weight b = Weight::dense("b", bias);
      const Tensor dy = drawn({n, 2, o}, 4);
      const Tensor y = linear(x, w, &b), want = at::linear(same, w.tensor(), same_bias);
      EXPECT_LT(error(y, want), 1e-5);
      y.backward(dy);
      want.backward(dy);
      EXPECT_LT(error(x.grad(), same.grad()), 1e-5) << o;
      EXPECT_LT(error(bias.grad(), same_bias.grad()), 1e-5);
    }
}

TEST(Weight, AStepThroughFrozenBlocksKeepsNoFloatCopyOfThem) {
  // eight layers of 2048 x 2048: 18 MiB stored, 128 MiB as floats
  constexpr int64_t kWidth = 2048, kLayers = 8, kTokens = 16;
  std::vector<WeightPtr> layers;
  int64_t stored = 0;
  for (int64_t i = 0; i < kLayers; ++i) {
    const auto base = std::make_shared<const Weight>(q4_0({kWidth, kWidth}, 10 + i));
    stored += base->bytes();
    const auto part = [&](at::IntArrayRef shape, uint64_t seed) {
      return std::make_shared<const Weight>(
          Weight::dense("lora", (0.01 * drawn(shape, seed)).requires_grad_(true)));
    };
    layers.push_back(std::make_shared<const Weight>(
        Weight::adapted(base, part({4, kWidth}, 30 + i), part({kWidth, 4}, 50 + i), 2.0)));
  }
  const Tensor x = drawn({kTokens, kWidth}, 1);
  const LiveBytes live;
  Tensor h = x;
  for (const WeightPtr& w : layers) h = linear(h, *w).tanh();
  // per layer: the base's product, the adapter's two and its scaled one, the sum, the activation
  const int64_t activations = kLayers * kTokens * (5 * kWidth + 4) * 4;
  const int64_t gradients = kLayers * 2 * 4 * kWidth * 4;
  h.square().sum().backward();
  EXPECT_GT(layers[0]->parts()->a->dense_tensor().grad().abs().max().item<double>(), 0);
  EXPECT_LT(static_cast<double>(live.most() - activations - gradients),
            0.3 * static_cast<double>(stored));
}

TEST(Weight, AdaptedByAScale) {
  const auto dense = [](Tensor t) { return std::make_shared<const Weight>(Weight::dense("t", t)); };
  const Tensor w = drawn({6, 5}, 1), a = drawn({2, 5}, 2), b = drawn({6, 2}, 3),
               x = drawn({3, 5}, 4);
  const Weight both = Weight::adapted(dense(w), dense(a), dense(b), 0.25);
  const Tensor merged = w + 0.25 * b.mm(a);
  EXPECT_LT(error(both.tensor(), merged), 1e-6);
  EXPECT_LT(error(linear(x, both), x.mm(merged.t())), 1e-6);
  EXPECT_LT(error(transposed_product(drawn({3, 6}, 5), both), drawn({3, 6}, 5).mm(merged)), 1e-6);
}

TEST(Weight, GroupedProductHasTheBitsOfEachExpertsOwn) {
  const std::vector<int64_t> offsets = {0, 3, 3, 4, 11};
  for (const bool blocks : {false, true}) {
    const Weight w = blocks ? q4_0({4, 9, 64}, 5) : Weight::dense("w", drawn({4, 9, 64}, 5));
    const Weight bias = Weight::dense("b", drawn({4, 9}, 6));
    const Tensor x = drawn({11, 64}, 7);
    const at::NoGradGuard guard;
    const Tensor y = grouped_linear(x, w, offsets, &bias);
    for (int64_t e = 0; e < 4; ++e) {
      const int64_t begin = offsets[e], n = offsets[e + 1] - begin;
      const Weight own = Weight::dense("b", bias.tensor().select(0, e));
      EXPECT_TRUE(
          at::equal(y.narrow(0, begin, n), linear(x.narrow(0, begin, n), w.slice(e), &own)));
    }
  }
}

TEST(Weight, GroupedProductsGradientsEqualThoseOfOneProductEach) {
  const std::vector<int64_t> offsets = {0, 3, 3, 4, 11};
  for (const bool blocks : {false, true}) {
    const Tensor numbers = drawn({4, 9, 64}, 5).requires_grad_(true);
    const Weight w = blocks ? q4_0({4, 9, 64}, 5) : Weight::dense("w", numbers);
    const Tensor b = drawn({4, 9}, 6).requires_grad_(true),
                 x = drawn({11, 64}, 7).requires_grad_(true);
    const Weight bias = Weight::dense("b", b);
    const Tensor dy = drawn({11, 9}, 8);
    std::vector<Tensor> inputs = {x, b};
    if (!blocks) inputs.push_back(numbers);
    const auto got = torch::autograd::grad({grouped_linear(x, w, offsets, &bias)}, inputs, {dy});
    std::vector<Tensor> parts;
    for (int64_t e = 0; e < 4; ++e) {
      const int64_t begin = offsets[e], n = offsets[e + 1] - begin;
      parts.push_back(at::linear(x.narrow(0, begin, n),
                                 blocks ? w.tensor().select(0, e) : numbers.select(0, e),
                                 b.select(0, e)));
    }
    const auto want = torch::autograd::grad({at::cat(parts)}, inputs, {dy});
    for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(error(got[i], want[i]), 1e-5) << i;
  }
}

TEST(Weight, GroupedProductsHaveTheSameBitsForAnyNumberOfThreads) {
  // experts with many rows, few and none
  const std::vector<int64_t> offsets = {0, 70, 72, 72, 105, 140};
  const int before = thread_count(), torch_before = at::get_num_threads();
  std::vector<Tensor> first;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    at::set_num_threads(threads);
    const Tensor w = drawn({5, 48, 64}, 5).requires_grad_(true),
                 x = drawn({140, 64}, 7).requires_grad_(true);
    const Weight weight = Weight::dense("w", w);
    const Tensor y = grouped_linear(x, weight, offsets);
    auto got = torch::autograd::grad({y}, {x, w}, {drawn({140, 48}, 8)});
    got.push_back(y.detach());
    {
      const at::NoGradGuard no_gradients;
      got.push_back(grouped_linear(x, weight, offsets));
      // and a row has its bits alone
      for (const int64_t row : {0, 71, 139})
        EXPECT_TRUE(at::equal(got.back()[row],
                              linear(x[row].unsqueeze(0), weight.slice(row < 70   ? 0
                                                                       : row < 72 ? 1
                                                                                  : 4))[0]));
    }
    EXPECT_TRUE(at::equal(got[1][2], at::zeros({48, 64})));
    if (first.empty()) first = got;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::equal(got[i], first[i])) << threads << " threads, " << i;
  }
  set_thread_count(before);
  at::set_num_threads(torch_before);
}

TEST(Weight, GroupedProductRefusesOffsetsThatDoNotRise) {
  const Weight w = Weight::dense("w", drawn({2, 3, 4}, 1));
  EXPECT_THROW(grouped_linear(drawn({5, 4}, 2), w, {0, 6, 5}), Error);
  EXPECT_THROW(grouped_linear(drawn({5, 4}, 2), w, {0, 5}), Error);
  EXPECT_THROW(grouped_linear(drawn({5, 4}, 2), w, {0, 2, 4}), Error);
}

TEST(Weight, ConvertedRoundsToNearestEvenAndRefusesTypesThatNothingWrites) {
  // 1 + 2^-8 and 1 + 3 2^-8 lie between two bf16, 1 + 2^-11 between two f16; 65520 is beyond f16
  const Weight w = Weight::dense(
      "w", at::tensor({1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 65520.0, -3.0, 0.0}, at::kFloat)
               .reshape({2, 3}));
  const auto numbers = [&](DType dtype) {
    const Tensor t = w.converted(dtype).tensor();
    return std::vector<float>(t.const_data_ptr<float>(), t.const_data_ptr<float>() + 6);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(numbers(DType::bf16), (std::vector<float>{1, 1.015625F, 1, 65536, -3, 0}));
  EXPECT_EQ(numbers(DType::f16),
            (std::vector<float>{1.00390625F, 1.01171875F, 1, kInfinity, -3, 0}));
  EXPECT_EQ(numbers(DType::f32),
            (std::vector<float>{1.00390625F, 1.01171875F, 1.00048828125F, 65520, -3, 0}));
  EXPECT_EQ(w.converted(DType::bf16).bytes(), 12);
  // the numbers are its own
  const Weight kept = w.converted(DType::f32);
  EXPECT_NE(kept.data(), w.data());
  EXPECT_FALSE(kept.trainable());
  EXPECT_THROW(w.converted(DType::q4_0), Error);  // rows of 3
}

TEST(Weight, ConvertedToBlocksIsAnotherStoredWeight) {
  const Weight w = Weight::dense("w", drawn({5, 64}, 1).requires_grad_(true));
  const Tensor x = drawn({7, 64}, 2), want = at::matmul(x, w.tensor().detach().t());
  for (const auto& [dtype, error] : {std::pair{DType::q8_0, 0.02},
                                     {DType::q5_1, 0.1},
                                     {DType::q5_0, 0.1},
                                     {DType::q4_1, 0.2},
                                     {DType::q4_0, 0.2}}) {
    const Weight blocks = w.converted(dtype);
    EXPECT_EQ(blocks.dtype(), dtype);
    EXPECT_EQ(blocks.shape(), w.shape());
    EXPECT_EQ(blocks.bytes(), storage_bytes(dtype, 5 * 64));
    EXPECT_FALSE(blocks.trainable());
    // rounding is what it lost, and a product is computed from what is left
    const Tensor numbers = blocks.tensor();
    EXPECT_LT((numbers - w.tensor()).norm().item<double>(),
              error * w.tensor().norm().item<double>());
    expect_near(linear(x, blocks), at::matmul(x, numbers.t()), 1e-4);
    EXPECT_LT((linear(x, blocks) - want).norm().item<double>(), error * want.norm().item<double>());
    // what it can say already stays
    EXPECT_TRUE(at::equal(blocks.converted(dtype).tensor(), numbers)) << name_of(dtype);
  }
  EXPECT_THROW(w.converted(DType::q4_k), Error);
}

/// |a - b| / |b|
double distance(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Weight, DigitsReplaceFloatsWhereNoGradientIsRecorded) {
  const Weight w = q4_0({37, 96}, 3), bias = Weight::dense("b", drawn({37}, 2));
  const Tensor x = drawn({11, 2, 96}, 1);
  Tensor want;
  {
    const at::NoGradGuard guard;
    want = linear(x, w, &bias);
  }
  for (const auto& [arithmetic, least, most] :
       {std::tuple{Arithmetic::int15, 1e-7, 1e-4}, {Arithmetic::int8, 1e-4, 2e-2}}) {
    const ProductSettings how = in(arithmetic);
    {
      const at::NoGradGuard guard;
      const Tensor y = linear(x, w, &bias, how);
      EXPECT_GT(distance(y, want), least);
      EXPECT_LT(distance(y, want), most);
      // rows do not depend on each other
      EXPECT_TRUE(at::equal(linear(x.narrow(0, 4, 1), w, &bias, how), y.narrow(0, 4, 1)));
      // beside an adapter too
      const auto part = [](Tensor t) {
        return std::make_shared<const Weight>(Weight::dense("lora", std::move(t)));
      };
      const auto a = part(drawn({2, 96}, 5)), b = part(0.1 * drawn({37, 2}, 6));
      const Weight adapted = Weight::adapted(std::make_shared<const Weight>(w), a, b);
      EXPECT_TRUE(at::equal(linear(x, adapted, &bias, how), y + linear(linear(x, *a), *b)));
    }
    EXPECT_TRUE(at::equal(linear(x, w, &bias, how), want));
  }
  const at::NoGradGuard guard;
  const Weight plain = Weight::dense("w", drawn({37, 96}, 4));
  EXPECT_TRUE(at::equal(linear(x, plain, nullptr, in(Arithmetic::int8)), linear(x, plain)));
}

TEST(Weight, OfWholeTextsARowHasItsBitsAmongAnyOthers) {
  const Weight w = Weight::dense("w", drawn({37, 900}, 3)),
               bias = Weight::dense("b", drawn({37}, 2));
  const auto part = [](Tensor t) {
    return std::make_shared<const Weight>(Weight::dense("lora", std::move(t)));
  };
  const Weight adapted = Weight::adapted(std::make_shared<const Weight>(w),
                                         part(drawn({2, 900}, 5)), part(drawn({37, 2}, 6)));
  const Tensor x = drawn({150, 900}, 1);
  const Weight experts = Weight::dense("e", drawn({3, 37, 900}, 7));
  {
    const at::NoGradGuard guard;
    const Tensor y = linear(x, w, &bias, kWhole);
    EXPECT_LT(distance(y, linear(x.to(at::kDouble), Weight::dense("w", w.tensor().to(at::kDouble)))
                              .add(bias.tensor().to(at::kDouble))),
              1e-6);
    EXPECT_FALSE(at::equal(y, linear(x, w, &bias)));  // another order of sums
    for (const int64_t row : {0, 77, 149}) {
      EXPECT_TRUE(at::equal(linear(x.narrow(0, row, 1), w, &bias, kWhole), y.narrow(0, row, 1)));
      EXPECT_TRUE(at::equal(linear(x.narrow(0, row, 1), adapted, &bias, kWhole),
                            linear(x, adapted, &bias, kWhole).narrow(0, row, 1)));
    }
    const Tensor grouped = grouped_linear(x, experts, {0, 20, 20, 150}, nullptr, kWhole);
    EXPECT_TRUE(at::equal(grouped.narrow(0, 20, 130),
                          linear(x.narrow(0, 20, 130), experts.slice(2), nullptr, kWhole)));
  }
  // what is recorded is what it was
  EXPECT_TRUE(at::equal(linear(x, w, &bias, kWhole), linear(x, w, &bias)));
  // other storage keeps its products
  const at::NoGradGuard guard;
  const Weight half = w.converted(DType::f16);
  EXPECT_TRUE(at::equal(linear(x, half, nullptr, kWhole), linear(x, half)));
}

TEST(Weight, AnInputIsRoundedOnceForAllThatShareIt) {
  const Weight a = q4_0({37, 96}, 3), b = q4_0({5, 96}, 4);
  const auto times = [](const auto& input, const Weight& w,
                        Arithmetic arithmetic = Arithmetic::int15) {
    return linear(input, w, nullptr, in(arithmetic));
  };
  const at::NoGradGuard guard;
  const Tensor x = drawn({4, 96}, 1), other = drawn({4, 96}, 2);
  const Tensor of_a = times(x, a), of_b = times(x, b), of_other = times(other, b),
               of_coarse = times(x, b, Arithmetic::int8), first = times(x.narrow(0, 0, 1), b);
  {
    const SharedInput shared(x), inner(other);
    EXPECT_TRUE(at::equal(times(shared, a), of_a));
    EXPECT_TRUE(at::equal(times(inner, b), of_other));
    EXPECT_TRUE(at::equal(times(x.narrow(0, 0, 1), b), first));
    EXPECT_TRUE(at::equal(times(shared, b), of_b));
    x.zero_();  // it has been read
    EXPECT_TRUE(at::equal(times(shared, b), of_b));
    EXPECT_FALSE(at::equal(times(shared, b, Arithmetic::int8), of_coarse));
  }
  EXPECT_FALSE(at::equal(times(x, b), of_b));
}

TEST(Weight, GroupedAndHeadProductsInDigitsHaveTheBitsOfEachMatrix) {
  const Weight w = q4_0({4, 9, 64}, 5);
  const ProductSettings how = in(Arithmetic::int15);
  const Tensor x = drawn({11, 64}, 7);
  const std::vector<int64_t> offsets = {0, 3, 3, 4, 11};
  {
    const at::NoGradGuard guard;
    const Tensor y = grouped_linear(x, w, offsets, nullptr, how);
    EXPECT_FALSE(at::equal(y, grouped_linear(x, w, offsets)));
    for (int64_t e = 0; e < 4; ++e) {
      const int64_t begin = offsets[e], n = offsets[e + 1] - begin;
      EXPECT_TRUE(at::equal(y.narrow(0, begin, n),
                            linear(x.narrow(0, begin, n), w.slice(e), nullptr, how)));
    }
    // four heads of nine outputs
    const Weight flat = q4_0({36, 64}, 5);
    const Tensor heads = drawn({5, 4, 64}, 8), z = head_linear(heads, flat, nullptr, how);
    for (int64_t h = 0; h < 4; ++h)
      EXPECT_TRUE(at::equal(z.select(1, h), linear(heads.select(1, h), w.slice(h), nullptr, how)));
  }
  EXPECT_TRUE(
      at::equal(grouped_linear(x, w, offsets, nullptr, how), grouped_linear(x, w, offsets)));
}

/// `w` with its numbers under other columns, in an order for each matrix; and, dense, what it
/// stands for.
struct Ordered {
  Weight weight;
  Tensor numbers;
  Tensor order;  // [matrices, I]

  explicit Ordered(const Weight& w) {
    const int64_t width = w.shape().back(), height = w.size(static_cast<int>(w.shape().size()) - 2);
    const int64_t matrices = w.elements() / (width * height);
    std::mt19937 random(11);
    std::vector<int32_t> columns;
    for (int64_t m = 0; m < matrices; ++m) {
      std::vector<int32_t> one(static_cast<size_t>(width));
      std::iota(one.begin(), one.end(), 0);
      std::shuffle(one.begin(), one.end(), random);
      columns.insert(columns.end(), one.begin(), one.end());
    }
    order = at::tensor(columns, at::kInt).to(at::kLong).reshape({matrices, width});
    const auto owner = std::make_shared<const Weight>(w);
    weight =
        Weight::stored({"ordered",
                        w.dtype(),
                        w.shape(),
                        {static_cast<const std::byte*>(w.data()), static_cast<size_t>(w.bytes())},
                        owner,
                        std::make_shared<const std::vector<int32_t>>(columns)});
    const Tensor flat = w.tensor().reshape({matrices, height, width});
    numbers = at::empty_like(flat);
    for (int64_t m = 0; m < matrices; ++m)
      numbers.select(0, m).index_copy_(1, order.select(0, m), flat.select(0, m));
    numbers = numbers.reshape(w.shape());
  }
};

TEST(Weight, ColumnsInAnotherOrderAreThoseThatTheyStandFor) {
  const Weight plain = q4_0({70, 96}, 3), bias = Weight::dense("b", drawn({70}, 2));
  const Ordered o(plain);
  EXPECT_EQ(o.weight.bytes(), plain.bytes());
  EXPECT_TRUE(at::equal(o.weight.tensor(), o.numbers));
  EXPECT_TRUE(at::equal(o.weight.converted(DType::f32).tensor(), o.numbers));
  const Tensor ids = at::tensor({3, 0, 69}, at::kLong);
  EXPECT_TRUE(at::equal(rows(o.weight, ids), o.numbers.index_select(0, ids)));
  // products have the bits of what lies there with inputs in its order
  const Tensor x = drawn({11, 2, 96}, 1), moved = x.index_select(-1, o.order.select(0, 0));
  for (const auto arithmetic : {Arithmetic::float32, Arithmetic::int15, Arithmetic::int8}) {
    const at::NoGradGuard guard;
    const ProductSettings how = in(arithmetic);
    const Tensor y = linear(x, o.weight, &bias, how), of_base = linear(x, plain, nullptr, how);
    EXPECT_TRUE(at::equal(y, linear(moved, plain, &bias, how)));
    EXPECT_TRUE(at::equal(linear(x.narrow(0, 4, 1), o.weight, &bias, how), y.narrow(0, 4, 1)));
    // beside others that read the same x
    const SharedInput shared(x);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(linear(shared, o.weight, &bias, how), y));
      EXPECT_TRUE(at::equal(linear(shared, plain, nullptr, how), of_base));
    }
  }
  // forward and backward through the stored numbers
  const Tensor with = x.clone().requires_grad_(true), dense = x.clone().requires_grad_(true),
               dy = drawn({11, 2, 70}, 4);
  const Tensor y = linear(with, o.weight), want = at::linear(dense, o.numbers);
  EXPECT_LT(error(y, want), 1e-5);
  y.backward(dy);
  want.backward(dy);
  EXPECT_LT(error(with.grad(), dense.grad()), 1e-5);
  EXPECT_LT(error(transposed_product(dy, o.weight), dense.grad()), 1e-5);
  // an adapter beside it reads inputs in their order
  const auto part = [](Tensor t) {
    return std::make_shared<const Weight>(Weight::dense("lora", std::move(t)));
  };
  const Tensor a = drawn({2, 96}, 5), b = drawn({70, 2}, 6), m = drawn({70}, 9);
  const Weight adapted = Weight::adapted({.w = std::make_shared<const Weight>(o.weight),
                                          .a = part(a),
                                          .b = part(b),
                                          .magnitude = part(m)});
  const Tensor sum = o.numbers + b.mm(a);
  const Tensor matrix = sum * (m / sum.norm(2, {-1})).unsqueeze(-1);
  EXPECT_LT(error(adapted.tensor(), matrix), 1e-5);
  EXPECT_LT(error(linear(x, adapted), at::linear(x, matrix)), 1e-5);
}

TEST(Weight, EachMatrixOfSeveralHasAnOrderOfItsColumns) {
  const Weight plain = q4_0({4, 9, 64}, 5);
  const Ordered o(plain);
  const Weight& w = o.weight;
  const ProductSettings how = in(Arithmetic::int15);
  EXPECT_TRUE(at::equal(w.tensor(), o.numbers));
  const Tensor x = drawn({11, 64}, 7);
  const std::vector<int64_t> offsets = {0, 3, 3, 4, 11};
  const auto own = [&](int64_t e) { return x.narrow(0, offsets[e], offsets[e + 1] - offsets[e]); };
  {
    const at::NoGradGuard guard;
    const Tensor y = grouped_linear(x, w, offsets, nullptr, how);
    for (int64_t e = 0; e < 4; ++e) {
      EXPECT_TRUE(at::equal(w.slice(e).tensor(), o.numbers.select(0, e)));
      const Tensor part = y.narrow(0, offsets[e], own(e).size(0));
      EXPECT_TRUE(at::equal(part, linear(own(e), w.slice(e), nullptr, how)));
      EXPECT_TRUE(at::equal(part, linear(own(e).index_select(1, o.order.select(0, e)),
                                         plain.slice(e), nullptr, how)));
    }
  }
  // gradients
  const Tensor with = x.clone().requires_grad_(true), dy = drawn({11, 9}, 8);
  grouped_linear(with, w, offsets).backward(dy);
  for (const int64_t e : {0, 2, 3})
    EXPECT_LT(distance(with.grad().narrow(0, offsets[e], own(e).size(0)),
                       dy.narrow(0, offsets[e], own(e).size(0)).mm(o.numbers.select(0, e))),
              1e-5);
  // heads that meet a matrix each, whose columns have one order
  const Ordered flat(q4_0({36, 64}, 5));
  const Tensor heads = drawn({5, 4, 64}, 8);
  const at::NoGradGuard guard;
  const Tensor z = head_linear(heads, flat.weight);
  for (int64_t h = 0; h < 4; ++h)
    EXPECT_LT(
        distance(z.select(1, h), at::linear(heads.select(1, h), flat.numbers.narrow(0, 9 * h, 9))),
        1e-5);
}

TEST(Weight, WhatColumnsMultiplyIsCountedInTheirOrder) {
  const Ordered o(q4_0({5, 64}, 3));
  const Tensor x = drawn({7, 64}, 1);
  const at::NoGradGuard guard;
  const InputSquares squares;
  linear(x, o.weight);
  const InputSquares::Sums* sums = squares.of(o.weight.data());
  ASSERT_NE(sums, nullptr);
  const Tensor want = x.to(at::kDouble).square().sum(0);
  EXPECT_LT(error(at::tensor(sums->squares, at::kDouble), want), 1e-12);
}

TEST(Weight, StoredFloatsAreOneView) {
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  const Weight w = Weight::stored("w", DType::f32, {2, 3}, numbers.data(), nullptr);
  EXPECT_EQ(w.tensor().const_data_ptr(), numbers.data());
  EXPECT_FALSE(w.dense_tensor().defined());
  // what takes a tensor by value does not take these numbers for its own
  EXPECT_GT(w.tensor().use_count(), 1);
}

TEST(Weight, RowsNamesTheFirstIdOutOfRange) {
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  const Weight stored = Weight::stored("w", DType::f32, {2, 3}, numbers.data(), nullptr),
               dense = Weight::dense("w", tensor({1, 2, 3, 4, 5, 6}, {2, 3}).to(at::kFloat));
  for (const Weight* w : {&stored, &dense}) {
    const auto at_ids = [&](const std::vector<int64_t>& ids, at::ScalarType type) {
      return rows(*w, at::tensor(ids, at::kLong).to(type));
    };
    for (const at::ScalarType type : {at::kLong, at::kInt})
      expect_near(at_ids({1, 0, 1}, type), tensor({4, 5, 6, 1, 2, 3, 4, 5, 6}, {3, 3}), 0);
    EXPECT_EQ(at_ids({}, at::kLong).sizes(), at::IntArrayRef({0, 3}));
    for (const auto& [ids, wrong] :
         {std::pair<std::vector<int64_t>, const char*>{{0, 2, -1}, "2"}, {{1, -1, 5}, "-1"}}) {
      try {
        at_ids(ids, at::kLong);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr(std::string("w: id ") + wrong +
                                                     " is out of range; expected 0 to 1"));
      }
    }
  }
}

// --- adapters of peft 0.21, in float64 (shared numbers: gen(2,3; .5,.1) and on)
// --------------------

/// W0, A, B, a bias and lengths of rows, which gradients reach where they are not of W0.
struct Adapting {
  WeightPtr w = constant(gen({2, 3}, .5, .1)), a = trained(gen({2, 3}, .7, .4)),
            b = trained(gen({2, 2}, .9, -.3)), m = trained(tensor({1.3, .8}, {2}));
  Weight bias = Weight::dense("bias", gen({2}, .3, .2));
  Tensor x = gen({1, 3}, .4, .3);

  static WeightPtr constant(const Tensor& t) {
    return std::make_shared<const Weight>(Weight::dense("w", t));
  }
  static WeightPtr trained(const Tensor& t) {
    return constant(t.detach().clone().requires_grad_(true));
  }
};

TEST(AdaptedWeight, GoldenLowRank) {
  const Adapting s;
  const Tensor lora = linear(s.x, Weight::adapted(s.w, s.a, s.b, 3.0 / 2), &s.bias),
               root = linear(s.x, Weight::adapted(s.w, s.a, s.b, 3 / std::sqrt(2.0)), &s.bias);
  expect_near(lora, tensor({0.29474199, 3.64021377}, {1, 2}), 1e-7);
  expect_near(root, tensor({-0.15734452, 4.40645944}, {1, 2}), 1e-7);
}

TEST(AdaptedWeight, GoldenLengthsOfRows) {
  const Adapting s;
  const Weight dora =
      Weight::adapted({.w = s.w, .a = s.a, .b = s.b, .scale = 1.5, .magnitude = s.m});
  const Tensor y = linear(s.x, dora, &s.bias), want = tensor({0.46616260, 1.24230053}, {1, 2});
  expect_near(y, want, 1e-7);
  expect_near(s.m->tensor().detach() / dora.parts()->row_factors().detach(),
              tensor({0.46690690, 3.31460673}, {2}), 1e-7);
  // as one matrix it is the same
  expect_near(at::linear(s.x, dora.tensor(), s.bias.tensor()), want, 1e-7);
  y.backward(tensor({1, -.5}, {1, 2}));
  expect_near(s.m->dense_tensor().grad(), tensor({0.20576405, -0.47679687}, {2}), 1e-7);
  expect_near(s.b->dense_tensor().grad(),
              tensor({6.50315900, -1.97831785, -0.28186379, 0.08574543}, {2, 2}), 1e-6);
  expect_near(s.a->dense_tensor().grad()[0], tensor({-0.41809621, -0.91142659, -1.26086275}, {3}),
              1e-6);
}

TEST(AdaptedWeight, GoldenLengthsOfAPlainMatrix) {
  const auto of = [](Tensor t) { return Adapting::constant(t); };
  const Weight dora = Weight::adapted({.w = of(tensor({3, 4, 0, 5}, {2, 2})),
                                       .a = of(tensor({.5, -.5}, {1, 2})),
                                       .b = of(tensor({1, 0}, {2, 1})),
                                       .magnitude = of(tensor({5, 5}, {2}))});
  expect_near(dora.tensor(), tensor({3.53553391, 3.53553391, 0, 5}, {2, 2}), 1e-7);
}

TEST(AdaptedWeight, LengthsOfRowsInBlocksAreThoseOfTheirNumbers) {
  for (const bool experts : {false, true}) {
    const std::vector<int64_t> lead = experts ? std::vector<int64_t>{3} : std::vector<int64_t>();
    const auto shape = [&](std::vector<int64_t> tail) {
      std::vector<int64_t> all = lead;
      all.insert(all.end(), tail.begin(), tail.end());
      return all;
    };
    const Weight blocks = q4_0(shape({40, 96}), 3);
    const auto part = [&](std::vector<int64_t> tail, uint64_t seed) {
      return std::make_shared<const Weight>(Weight::dense("p", drawn(shape(tail), seed)));
    };
    const Weight::Adapted parts{.w = std::make_shared<const Weight>(blocks),
                                .a = part({4, 96}, 5),
                                .b = part({40, 4}, 6),
                                .scale = 0.5,
                                .magnitude = part({40}, 7)};
    const Tensor sum = blocks.tensor() + 0.5 * at::matmul(parts.b->tensor(), parts.a->tensor());
    const Tensor want =
        parts.magnitude->tensor().unsqueeze(-1) * sum / sum.norm(2, {-1}, /*keepdim=*/true);
    const Weight dora = Weight::adapted(parts);
    EXPECT_LT(error(dora.tensor(), want), 1e-5);
    const Tensor x = drawn({6, 96}, 1);
    const std::vector<int64_t> offsets = {0, 2, 2, 6};
    for (const bool gradients : {false, true}) {
      const at::AutoGradMode mode(gradients);
      if (!experts) {
        EXPECT_LT(error(linear(x, dora), at::linear(x, want)), 1e-5);
        EXPECT_LT(
            error(transposed_product(drawn({6, 40}, 2), dora), drawn({6, 40}, 2).matmul(want)),
            1e-5);
        continue;
      }
      const Tensor by_hand =
          at::cat({at::linear(x.narrow(0, 0, 2), want[0]), at::linear(x.narrow(0, 2, 4), want[2])});
      EXPECT_LT(error(grouped_linear(x, dora, offsets), by_hand), 1e-5);
      EXPECT_LT(error(linear(x, dora.slice(2)), at::linear(x, want[2])), 1e-5);
    }
  }
}

// Numbers of the `gguf` package's blocks and torch in float64. Dettmers et al. 2023,
// arXiv:2305.14314: the frozen base stays in its blocks, forward and backward.
TEST(AdaptedWeight, RowsAreThoseOfTheSum) {
  const auto w = std::make_shared<const Weight>(q4_0({6, 96}, 3));
  const Tensor a = drawn({2, 96}, 1).requires_grad_(true),
               b = drawn({6, 2}, 2).requires_grad_(true);
  const Weight adapted =
      Weight::adapted(w, std::make_shared<const Weight>(Weight::dense("a", a)),
                      std::make_shared<const Weight>(Weight::dense("b", b)), 0.7);
  const Tensor ids = at::tensor({4, 0, 4}, at::kLong);
  const Tensor want = (w->tensor() + 0.7 * b.matmul(a)).index_select(0, ids);
  EXPECT_LT(error(rows(adapted, ids), want), 1e-5);
  {
    const at::NoGradGuard guard;
    EXPECT_LT(error(rows(adapted, ids), want), 1e-5);
  }
  // gradients reach both factors
  const Tensor dy = drawn({3, 96}, 4);
  const auto of = [&](const Tensor& y) { return torch::autograd::grad({y}, {a, b}, {dy}); };
  const auto ours = of(rows(adapted, ids)), theirs = of(want);
  for (size_t i = 0; i < 2; ++i) EXPECT_LT(error(ours[i], theirs[i]), 1e-5);
}

TEST(AdaptedWeight, BesideBlocksGradientsComeFromTheBlocks) {
  struct Case {
    DType type;
    std::vector<double> y, dx, merged;
  };
  for (const Case& c : {Case{DType::q8_0,
                             {-1.60619298, -0.22957463},
                             {-0.21016832, -0.37303934, -0.09477362},
                             {-1.59022253, -0.22281344}},
                        Case{DType::q4_0,
                             {-1.64565202, -0.20327784},
                             {-0.20034929, -0.40562448, -0.12649664},
                             {-1.78590601, -0.49055384}}}) {
    const auto f32 = [](const Tensor& t) { return t.to(at::kFloat); };
    const auto share = [](Weight w) { return std::make_shared<const Weight>(std::move(w)); };
    const WeightPtr w = share(Weight::dense("w", f32(gen({2, 32}, .3, .1))).converted(c.type));
    const WeightPtr a = share(Weight::dense("a", f32(gen({1, 32}, .7, .4)).requires_grad_(true))),
                    b = share(Weight::dense("b", f32(gen({2, 1}, .9, -.3)).requires_grad_(true)));
    const Weight both = Weight::adapted(w, a, b, 2);
    const Tensor x = f32(gen({1, 32}, .4, .3)).requires_grad_(true);
    const Tensor y = linear(x, both);
    expect_near(y, f32(tensor(c.y, {1, 2})), 1e-6);
    y.backward(f32(tensor({1, -.5}, {1, 2})));
    expect_near(x.grad().narrow(1, 0, 3), f32(tensor(c.dx, {1, 3})), 1e-6);
    expect_near(b->dense_tensor().grad(), f32(tensor({0.57348193, -0.28674096}, {2, 1})), 1e-6);
    expect_near(a->dense_tensor().grad().narrow(1, 0, 2),
                f32(tensor({-0.34152765, -0.74451136}, {1, 2})), 1e-6);
    // back in blocks it is another model
    const at::NoGradGuard guard;
    const Weight merged = Weight::dense("w", both.tensor().detach()).converted(c.type);
    expect_near(linear(x, merged), f32(tensor(c.merged, {1, 2})), 1e-6);
  }
}

TEST(AdaptedWeight, FactorsAreOnWhatItGivesAndReads) {
  const Adapting s;
  const WeightPtr out = Adapting::trained(tensor({2, -1}, {2})),
                  in = Adapting::trained(tensor({.5, 3, 1}, {3}));
  const Weight both = Weight::adapted({.w = s.w, .out = out, .in = in});
  const auto bias = std::make_shared<const Weight>(s.bias);
  const Weight scaled = Weight::adapted({.w = bias, .out = out});
  const Tensor want =
      (at::linear(s.x * in->tensor(), s.w->tensor()) + s.bias.tensor()) * out->tensor();
  expect_near(linear(s.x, both, &scaled), want, 1e-12);
  expect_near(at::linear(s.x, both.tensor(), scaled.tensor()), want, 1e-12);
  expect_near(transposed_product(gen({1, 2}, .4, .3), both),
              gen({1, 2}, .4, .3).matmul(both.tensor()), 1e-12);
  linear(s.x, both, &scaled).sum().backward();
  const Tensor got_out = out->dense_tensor().grad().clone(),
               got_in = in->dense_tensor().grad().clone();
  out->dense_tensor().mutable_grad() = Tensor();
  in->dense_tensor().mutable_grad() = Tensor();
  want.sum().backward();
  expect_near(got_out, out->dense_tensor().grad(), 1e-12);
  expect_near(got_in, in->dense_tensor().grad(), 1e-12);
}

TEST(AdaptedWeight, DropoutIsOfWhatChangesAlone) {
  const Adapting s;
  const Weight dora = Weight::adapted(
      {.w = s.w, .a = s.a, .b = s.b, .scale = 1.5, .dropout = 0.5, .magnitude = s.m});
  const Tensor kept = s.x * tensor({2, 0, 2}, {3});
  const ProductSettings drops{.drop = std::make_shared<const InputDrop>(
                                  [&](const Tensor&, double, const std::string&) { return kept; })};
  const Tensor n = tensor({0.46690690, 3.31460673}, {2}), factors = s.m->tensor() / n;
  const Tensor want = at::linear(s.x, s.w->tensor(), s.bias.tensor()) +
                      (factors - 1) * at::linear(kept, s.w->tensor()) +
                      factors * 1.5 * at::linear(at::linear(kept, s.a->tensor()), s.b->tensor());
  expect_near(linear(s.x, dora, &s.bias, drops), want, 1e-7);
}

TEST(AdaptedWeight, APrefixTakesTheFirstPlacesOfEveryDocument) {
  const auto prefix = Adapting::trained(gen({2, 3}, .7, .4));
  const Weight w =
      Weight::adapted({.w = Adapting::constant(gen({3, 3}, .5, .1)), .prefix = prefix});
  const Tensor y = gen({5, 3}, .4, .3), places = at::tensor({0, 1, 2, 1, 7}, at::kLong);
  const Tensor got = prefixed(y, w, places);
  expect_near(
      got, at::stack({prefix->tensor()[0], prefix->tensor()[1], y[2], prefix->tensor()[1], y[4]}),
      0);
  got.sum().backward();
  expect_near(prefix->dense_tensor().grad(), tensor({1, 1, 1, 2, 2, 2}, {2, 3}), 0);
}

}  // namespace
}  // namespace tessera::ops::weight_test
