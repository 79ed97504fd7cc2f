#include "tessera/nn/context.h"

#include <gtest/gtest.h>

#include "tessera/nn/checkpointing.h"

namespace tessera::nn::context_test {
namespace {

TEST(Context, OnceMakesAValueOfTheBatchForTheCallAndItsCopies) {
  Context context;
  int made = 0;
  const auto make = [&] { return ++made; };
  Context copy = context;
  EXPECT_EQ(copy.once<int>("table", make), 1);
  EXPECT_EQ(context.once<int>("table", make), 1);
  const Batch other;
  EXPECT_EQ(context.over(other).once<int>("table", make), 2);
  EXPECT_EQ(context.once<int>("table", make), 1);
}

TEST(Context, WhatIsMadeOnceHasNoGradient) {
  Context context;
  const Tensor w = at::ones({3}).requires_grad_(true);
  EXPECT_FALSE(context.once<Tensor>("x", [&] { return w * 2; }).requires_grad());
}

TEST(Context, ValuesOfLayersAreNamedInTheErrorWhereNoneLeftThem) {
  Context context;
  context.values.put("layers.0.mixer", at::ones({1}));
  EXPECT_EQ(context.values.at("layers.0.mixer").numel(), 1);
  try {
    context.values.at("layers.1.mixer");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layers.1.mixer"), std::string::npos);
  }
}

TEST(Context, AProbeTakesWhatItWants) {
  std::vector<std::string> taken;
  const auto take = [&](const std::string& name, const Tensor&) { taken.push_back(name); };
  const Probe some(take, [](const std::string& name) { return name == "b"; });
  for (const char* name : {"a", "b"}) some(name, Tensor());
  EXPECT_EQ(taken, (std::vector<std::string>{"b"}));
  EXPECT_FALSE(Probe().wants("a"));
  EXPECT_TRUE(Probe(take).wants("a"));
}

/// What a region does in its second run is seen by nobody but its gradients.
TEST(Context, StatisticsAndLossesOfARecomputedRegionComeOnce) {
  Context context;
  const Batch batch = Batch::of(at::zeros({1, 2}, at::kLong));
  context.batch = &batch;
  int statistics = 0, losses = 0;
  context.add_statistic = [&](const std::string&, const Tensor&) { ++statistics; };
  context.add_loss = [&](const std::string&, const Tensor&) { ++losses; };
  const auto w = std::make_shared<const ops::Weight>(
      ops::Weight::dense("w", at::full({2, 3}, 0.5, at::kDouble).requires_grad_(true)));
  const std::vector<WeightPtr> weights = {w};
  int runs = 0;
  const Tensor x = at::full({2, 3}, 0.25, at::kDouble).requires_grad_(true);
  const Tensor y = recomputed(
      [&](const Tensor& x_ND, Context& here) {
        ++runs;
        if (here.add_statistic) here.add_statistic("load", x_ND.sum());
        const Tensor out = ops::linear(x_ND, *w).tanh();
        here.add_loss("own", out.sum());
        here.values.put("left", out * 2);
        return out;
      },
      weights, x, context);
  (y.sum() + context.values.at("left").sum()).backward();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(statistics, 1);
  EXPECT_EQ(losses, 1);
  // d (tanh(w x) (1 + 2)) / dw, summed over two tokens
  const double t = std::tanh(3 * 0.5 * 0.25);
  EXPECT_NEAR(w->dense_tensor().grad()[0][0].item<double>(), 2 * 3 * (1 - t * t) * 0.25, 1e-12);
}

}  // namespace
}  // namespace tessera::nn::context_test
