#include "tessera/ops/weights/quantized_operands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tessera/base/testing.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/digits.h"
#include "tessera/kernels/weights/ternary.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/weights/product_input.h"
#include "tessera/spec/json.h"

namespace tessera::ops::quantized_operands_test {
namespace {

using testing::HasSubstr;

constexpr OperandRounding kBoth{true, true};

Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

WeightPtr trained(const Tensor& w) {
  return std::make_shared<const Weight>(Weight::dense("w", w.clone().requires_grad_(true)));
}
WeightPtr frozen(const Tensor& w) {
  return std::make_shared<const Weight>(Weight::dense("w", w.clone()));
}

// the formulas of the header in torch's operations
Tensor plain_ternary(const Tensor& w) {
  const Tensor scale = w.abs().mean({-2, -1}, true).clamp_min(1e-5).reciprocal();
  return (w * scale).round().clamp(-1, 1) / scale;
}
Tensor plain_int8(const Tensor& x) {
  const Tensor scale = 127 / x.abs().amax(-1, true).clamp_min(1e-5);
  return (x * scale).round() / scale;
}

double difference(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

class Golden {
 public:
  Golden() {
    const std::string path = std::string(TESSERA_SOURCE_DIR) + "/tests/golden/bit_linear.json";
    std::ifstream file(path);
    json_ = spec::parse_json(std::string((std::istreambuf_iterator<char>(file)), {}), path);
  }
  int64_t size(const char* name) const { return json_[name].get<int64_t>(); }
  Tensor at(const char* name, at::IntArrayRef shape) const {
    return at::tensor(json_[name].get<std::vector<float>>(), at::kFloat).reshape(shape);
  }

 private:
  spec::Json json_;
};

TEST(QuantizedOperands, EqualTransformersBitLinear) {
  const Golden golden;
  const int64_t n = golden.size("N"), i = golden.size("I"), o = golden.size("O");
  const WeightPtr w = with_rounding(trained(golden.at("weight", {o, i})), kBoth);
  const Weight bias = Weight::dense("b", golden.at("bias", {o}).requires_grad_(true));
  const Tensor x = golden.at("x", {n, i}).requires_grad_(true);
  const Tensor y = linear(x, *w, &bias);
  EXPECT_LT(difference(y, golden.at("y", {n, o})), 1e-6);
  y.backward(golden.at("dy", {n, o}));
  EXPECT_LT(difference(x.grad(), golden.at("dx", {n, i})), 1e-6);
  EXPECT_LT(difference(w->dense_tensor().grad(), golden.at("dweight", {o, i})), 1e-6);
  EXPECT_LT(difference(bias.dense_tensor().grad(), golden.at("dbias", {o})), 1e-6);
  // of what is not trained, from blocks
  const at::NoGradGuard no_gradients;
  const WeightPtr blocks = with_rounding(frozen(golden.at("weight", {o, i})), kBoth);
  EXPECT_EQ(blocks->dtype(), DType::scaled_u4);
  EXPECT_LT(difference(linear(golden.at("x", {n, i}), *blocks, &bias), golden.at("y", {n, o})),
            1e-6);
}

TEST(QuantizedOperands, RoundEachMatrixAndEachRow) {
  const Tensor w = drawn({3, 5, 48}, 1), x = drawn({2, 7, 33}, 2);
  EXPECT_LT(difference(ternary_matrices(w), plain_ternary(w)), 1e-6);
  EXPECT_LT(difference(int8_rows(x), plain_int8(x)), 1e-6);
  const Tensor wide_w = w.to(at::kDouble), wide_x = x.to(at::kDouble);
  EXPECT_LT(difference(ternary_matrices(wide_w), plain_ternary(wide_w)), 1e-12);
  EXPECT_LT(difference(int8_rows(wide_x), plain_int8(wide_x)), 1e-12);
  // zeros have no scale
  EXPECT_TRUE(at::equal(int8_rows(at::zeros({2, 8})), at::zeros({2, 8})));
  EXPECT_TRUE(at::equal(ternary_matrices(at::zeros({2, 8})), at::zeros({2, 8})));
  for (const int threads : {1, 3}) {
    const int before = thread_count();
    set_thread_count(threads);
    EXPECT_TRUE(at::equal(ternary_matrices(w), ternary_matrices(w.clone())));
    EXPECT_TRUE(at::equal(int8_rows(x), int8_rows(x.clone())));
    set_thread_count(before);
  }
}

TEST(QuantizedOperands, GradientsPassTheRounding) {
  const Tensor w = drawn({5, 40}, 1), x = drawn({7, 40}, 2), dy = drawn({7, 5}, 3);
  for (const OperandRounding rounding :
       {kBoth, OperandRounding{true, false}, OperandRounding{false, true}}) {
    const Tensor rounded_w = rounding.ternary ? plain_ternary(w) : w,
                 rounded_x = rounding.int8 ? plain_int8(x) : x;
    const WeightPtr weight = with_rounding(trained(w), rounding);
    const Tensor input = x.clone().requires_grad_(true);
    const Tensor y = linear(input, *weight);
    EXPECT_LT(difference(y, rounded_x.matmul(rounded_w.t())), 1e-5);
    y.backward(dy);
    EXPECT_LT(difference(input.grad(), dy.matmul(rounded_w)), 1e-5);
    EXPECT_LT(difference(weight->dense_tensor().grad(), dy.t().matmul(rounded_x)), 1e-5);
  }
}

// each type that ternary_type() has
TEST(QuantizedOperands, FrozenMatricesAreMultipliedFromTernaryBlocks) {
  struct Case {
    int64_t width;
    float mean;  // 0: as it is drawn
    DType type;
  };
  const at::NoGradGuard no_gradients;
  for (const Case& c : {Case{512, 0.5f, DType::tq2_0}, Case{512, 0, DType::scaled_u4},
                        Case{96, 0.5f, DType::scaled_u4}, Case{40, 0.5f, DType::f32}}) {
    Tensor w = drawn({9, c.width}, 4);
    if (c.mean > 0) w = plain_ternary(w).sign() * c.mean;
    if (c.mean > 0) w = at::where(w == 0, at::full_like(w, c.mean), w);  // a mean that halves hold
    const WeightPtr blocks = with_rounding(frozen(w), kBoth);
    ASSERT_EQ(blocks->dtype(), c.type) << c.width;
    EXPECT_FALSE(blocks->rounding().ternary);
    const Tensor x = drawn({6, c.width}, 5);
    const Tensor y = linear(x, *blocks), want = plain_int8(x).matmul(plain_ternary(w).t());
    EXPECT_LT(difference(y, want), 1e-6) << c.width;
    for (int64_t row = 0; row < 6; ++row)
      EXPECT_TRUE(at::equal(linear(x.narrow(0, row, 1), *blocks), y.narrow(0, row, 1)));
    // through a frozen matrix
    const at::AutoGradMode recording(true);
    const Tensor input = x.clone().requires_grad_(true), dy = drawn({6, 9}, 6);
    linear(input, *blocks).backward(dy);
    EXPECT_LT(difference(input.grad(), dy.matmul(plain_ternary(w))), 1e-5);
  }
}

TEST(QuantizedOperands, BlocksAreNotRoundedAgain) {
  const at::NoGradGuard no_gradients;
  const Tensor w = drawn({7, 64}, 8), x = drawn({4, 64}, 9);
  const auto q4 = std::make_shared<const Weight>(frozen(w)->converted(DType::q4_0));
  const WeightPtr rounded = with_rounding(q4, kBoth);
  for (const auto of_call : {kernels::Arithmetic::float32, kernels::Arithmetic::int15})
    EXPECT_EQ(arithmetic_of(*rounded, of_call), kernels::Arithmetic::int8_row);
  EXPECT_LT(difference(linear(x, *rounded), plain_int8(x).matmul(q4->tensor().t())), 1e-6);
}

TEST(QuantizedOperands, ExpertsAreRoundedEach) {
  const Tensor w = drawn({3, 5, 64}, 8) * at::tensor({1.0f, 3.0f, 0.1f}).reshape({3, 1, 1});
  const Tensor x = drawn({6, 64}, 9), dy = drawn({6, 5}, 3);
  const std::vector<int64_t> offsets = {0, 2, 2, 6};
  const WeightPtr training = with_rounding(trained(w), kBoth);
  const Tensor input = x.clone().requires_grad_(true);
  const Tensor y = grouped_linear(input, *training, offsets);
  const Tensor rounded_w = plain_ternary(w), rounded_x = plain_int8(x);
  const Tensor want = at::cat({rounded_x.narrow(0, 0, 2).matmul(rounded_w[0].t()),
                               rounded_x.narrow(0, 2, 4).matmul(rounded_w[2].t())});
  EXPECT_LT(difference(y, want), 1e-5);
  y.backward(dy);
  EXPECT_LT(difference(training->dense_tensor().grad()[2],
                       dy.narrow(0, 2, 4).t().matmul(rounded_x.narrow(0, 2, 4))),
            1e-5);
  const at::NoGradGuard no_gradients;
  const WeightPtr blocks = with_rounding(frozen(w), kBoth);
  EXPECT_EQ(blocks->dtype(), DType::scaled_u4);
  const Tensor all = grouped_linear(x, *blocks, offsets);
  EXPECT_LT(difference(all, want), 1e-5);
  EXPECT_TRUE(at::equal(all.narrow(0, 2, 4), linear(x.narrow(0, 2, 4), blocks->slice(2))));
}

// the low-rank product of an adapter stays in floats
TEST(QuantizedOperands, OfAnAdaptedWeightItselfAlone) {
  const Tensor w = drawn({5, 64}, 1), a = drawn({2, 64}, 2), b = drawn({5, 2}, 3),
               x = drawn({3, 64}, 4);
  const auto part = [](const Tensor& t) {
    return std::make_shared<const Weight>(Weight::dense("part", t.clone().requires_grad_(true)));
  };
  const auto adapted =
      std::make_shared<const Weight>(Weight::adapted(frozen(w), part(a), part(b), 0.5));
  const Tensor y = linear(x, *with_rounding(adapted, kBoth));
  const Tensor want =
      plain_int8(x).matmul(plain_ternary(w).t()) + 0.5 * x.matmul(a.t()).matmul(b.t());
  EXPECT_LT(difference(y, want), 1e-5);
}

TEST(QuantizedOperands, OtherReadersAreRefused) {
  const WeightPtr w = with_rounding(trained(drawn({6, 8}, 1)), kBoth);
  const auto refused = [](const auto& body) {
    return test::error_of(ErrorKind::usage, [&] { body(); });
  };
  EXPECT_THAT(refused([&] { w->tensor(); }), HasSubstr("without activations to round"));
  EXPECT_THAT(refused([&] {
                transposed_product(drawn({2, 6}, 2), *w);
              }),
              HasSubstr("w is read as"));
  EXPECT_THAT(refused([&] { head_linear(drawn({2, 3, 8}, 2), *w); }), HasSubstr("w is read as"));
  // a matrix alone can be read
  const WeightPtr matrix = with_rounding(trained(drawn({6, 8}, 1)), {true, false});
  EXPECT_LT(difference(matrix->tensor(), plain_ternary(matrix->dense_tensor())), 1e-6);
}

}  // namespace
}  // namespace tessera::ops::quantized_operands_test
