// A model on another device: weights of each storage, and text from the engine.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "fake_device/fake_device.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/base/testing.h"
#include "tessera/model/placement.h"
#include "tessera/ops/device_name.h"
#include "tessera/ops/weights/to_device.h"

namespace tessera::infer::device_test {
namespace {

class OnDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { fake_device::install(); }
  const at::Device device_ = fake_device::device();
};

TEST_F(OnDevice, WeightsKeepNumbersTypesAndGradients) {
  const Tensor numbers = at::arange(64, at::kFloat).reshape({2, 32}) / 8;
  const auto dense =
      std::make_shared<ops::Weight>(ops::Weight::dense("w", numbers.clone().requires_grad_(true)));
  const ops::WeightPtr there = ops::to_device(dense, device_);
  EXPECT_EQ(there->device(), device_);
  EXPECT_TRUE(there->trainable());
  EXPECT_TRUE(there->dense_tensor().is_leaf());
  EXPECT_TRUE(at::equal(there->tensor().detach().cpu(), numbers));
  EXPECT_EQ(ops::to_device(there, device_), there);
  EXPECT_EQ(ops::to_device(dense, at::kCPU), dense);
  // blocks stay as they are stored
  for (const DType type :
       {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::mxfp4, DType::iq4_nl}) {
    const auto stored = std::make_shared<ops::Weight>(dense->converted(type));
    const ops::WeightPtr copy = ops::to_device(stored, device_);
    EXPECT_EQ(copy->dtype(), type);
    EXPECT_FALSE(copy->trainable());
    EXPECT_TRUE(at::equal(copy->tensor().cpu().to(at::kFloat), stored->tensor())) << name_of(type);
    const Tensor x = at::ones({3, 32});
    EXPECT_TRUE(
        at::allclose(ops::linear(x.to(device_), *copy).cpu(), ops::linear(x, *stored), 1e-5, 1e-5))
        << name_of(type);
    const ops::WeightPtr back = ops::to_device(copy, at::kCPU);
    EXPECT_EQ(back->dtype(), copy->dtype());
    EXPECT_TRUE(at::equal(back->tensor().to(at::kFloat), stored->tensor())) << name_of(type);
  }
  const auto low = [](int64_t o, int64_t i) {
    return std::make_shared<ops::Weight>(ops::Weight::dense("low", at::ones({o, i})));
  };
  const auto adapted =
      std::make_shared<ops::Weight>(ops::Weight::adapted(dense, low(3, 32), low(2, 3), 0.5));
  const ops::WeightPtr copy = ops::to_device(adapted, device_);
  EXPECT_EQ(copy->device(), device_);
  EXPECT_TRUE(at::allclose(copy->tensor().detach().cpu(), adapted->tensor().detach(), 1e-6, 1e-6));
}

TEST_F(OnDevice, BytesOfAModelAreThoseOfItsCopy) {
  const model::Model whole = infer::tiny_model_of(
      R"({"tessera": 1, "arch": "decoder", "vocab": 23, "d_model": 32, "head": "linear",
          "mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 64},
          "layers": [{"repeat": 2}]})",
      3);
  for (const DType type : {DType::f32, DType::f16, DType::q8_0, DType::mxfp4, DType::iq4_nl}) {
    std::map<std::string, ops::WeightPtr> weights;
    for (const auto& [decl, weight] : whole.weights().all())
      weights[decl.name] = decl.shape.size() == 2
                               ? std::make_shared<const ops::Weight>(weight->converted(type))
                               : weight;
    const model::Model stored(whole.spec(),
                              model::Weights::check(whole.spec(), std::move(weights)));
    int64_t bytes = 0;
    const model::Model there = model::to_device(stored, device_);
    for (const auto& [decl, weight] : there.weights().all()) bytes += weight->bytes();
    EXPECT_EQ(model::bytes_on_device(stored), bytes) << name_of(type);
  }
}

TEST_F(OnDevice, DevicesHaveNames) {
  EXPECT_EQ(ops::device_named("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(ops::device_named("fake"), fake_device::device(0));
  EXPECT_EQ(ops::device_named("fake:1"), fake_device::device(1));
  for (const char* name : {"", "tpu", "cpu:0", "fake:", "fake:x", "fake:-1", "fake:1000", "cuda:x"})
    test::expect_error(ErrorKind::usage, "expected cpu, cuda or cuda:N",
                       [&] { ops::device_named(name); });
  test::expect_error(ErrorKind::usage,
                     "[device] fake:2: there are 2 devices; expected fake:0 to fake:1",
                     [] { ops::device_named("fake:2"); });
  EXPECT_EQ(ops::devices().front(), "cpu");
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty())
    test::expect_error(ErrorKind::usage, "[device] cuda:1: " + reason,
                       [] { ops::device_named("cuda:1"); });
}

TEST_F(OnDevice, TextIsThatOfTheCpu) {
  for (const auto& [name, text] : tiny_layers()) {
    const model::Model model = tiny_model(text, 3), there = model::to_device(model, device_);
    EXPECT_EQ(model::device_of(model), at::Device(at::kCPU));
    EXPECT_EQ(model::device_of(there), device_);
    const std::vector<std::vector<int64_t>> prompts{random_tokens(9, 1), random_tokens(31, 2)};
    GenerateOptions options;
    options.max_new_tokens = 24;
    const Generations want = generate(model, nullptr, prompts, options),
                      got = generate(there, nullptr, prompts, options);
    for (size_t r = 0; r < prompts.size(); ++r)
      EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids) << name;
  }
}

}  // namespace
}  // namespace tessera::infer::device_test
