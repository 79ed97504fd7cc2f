// What is measured: the bytes are those that computing holds, limits hold, steps are compared where
// there is a state.
#include "tessera/analysis/mixer_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tessera/analysis/cost_cases.h"
#include "tessera/base/allocator.h"
#include "tessera/base/testing.h"
#include "tessera/kernels/scratch.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/tensor_memory.h"

namespace tessera::analysis::mixer_bench_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMegabyte = 1 << 20;

Cost measured(const std::string& name, const MixerBenchOptions& options) {
  return measure_cost(*cost_mechanisms({name}).front(), options);
}

/// A narrow layer, all lengths fitted, every call once, however busy the machine.
MixerBenchOptions once(std::vector<int64_t> lengths) {
  MixerBenchOptions options;
  options.width = 32;
  options.fit_from = lengths.front();
  options.lengths = std::move(lengths);
  options.repeats = 1;
  options.limit = 600;
  return options;
}

TEST(MemoryMeter, CountsTensorsUntilTheyGo) {
  Tensor before = at::ones({1000});
  ops::count_tensor_memory();
  MemoryMeter& meter = memory_meter();
  const int64_t held = meter.held();
  meter.restart();
  {
    Tensor a = at::empty({kMegabyte}, at::kFloat);
    EXPECT_NEAR(static_cast<double>(meter.held() - held), 4.0 * kMegabyte, 8192);
    const Tensor view = a.view({1024, 1024}).narrow(0, 0, 10);
    a = Tensor();
    EXPECT_GT(meter.held() - held, 4 * kMegabyte - 4096) << "a view keeps the storage";
    const Tensor b = view + 1;
    EXPECT_LT(meter.held() - held, 4 * kMegabyte + 65536);
  }
  EXPECT_EQ(meter.held(), held);
  EXPECT_NEAR(static_cast<double>(meter.peak() - held), 4.0 * kMegabyte, 65536);
  meter.restart();
  EXPECT_EQ(meter.peak(), held);
  // memory from before it was counted comes back uncounted
  before.reset();
  EXPECT_EQ(meter.held(), held);
}

TEST(MemoryMeter, CountsWorkMemoryOfAGeneration) {
  constexpr int kSlot = 1000;  // no kernel's
  MemoryMeter& meter = memory_meter();
  const auto take = [](int64_t floats) { kernels::scratch<kSlot>(floats)[0] = 1; };
  std::thread([&] {
    next_scratch_generation();
    const int64_t held = meter.held();
    take(1000);
    EXPECT_EQ(meter.held() - held, 4000);
    take(10);
    EXPECT_EQ(meter.held() - held, 4000) << "a smaller request takes the same memory";
    take(5000);
    EXPECT_EQ(meter.held() - held, 20000);
    next_scratch_generation();
    EXPECT_EQ(meter.held(), held) << "that of an older generation does not count";
    take(10);
    EXPECT_EQ(meter.held() - held, 40);
    next_scratch_generation();
    kernels::scratch<kSlot>(0);
    EXPECT_EQ(meter.held(), held);
  }).join();
}

TEST(MixerBench, PeaksAreThoseOfTheMechanism) {
  MixerBenchOptions options;
  options.width = 64;
  options.lengths = {256, 512, 1024};
  options.repeats = 1;
  options.step = false;
  options.fit_from = 256;
  options.limit = 60;
  // one head of 64 channels over T tokens holds rows of 64 floats; a matrix of scores would be
  // 4 MB at 1024 tokens
  const Cost attention = measured("attention", options);
  const Curve* forward = attention.curve(Pass::forward);
  ASSERT_EQ(forward->points.size(), 3u);
  for (const Point& p : forward->points) {
    EXPECT_GE(p.bytes, p.length * 64 * 4) << "the output alone";
    EXPECT_GT(p.seconds, 0);
  }
  EXPECT_LT(fit(*forward, 256)->memory, 1.1);
  EXPECT_GT(attention.curve(Pass::backward)->points[2].bytes, forward->points[2].bytes);
  // a T x T matrix is seen, where it is larger than what is linear
  options.lengths = {512, 1024, 2048};
  const Cost gmlp = measured("gmlp", options);
  EXPECT_GT(gmlp.curve(Pass::forward)->points[2].bytes, 16 * kMegabyte);
  EXPECT_GT(fit(*gmlp.curve(Pass::forward), 512)->memory, 1.4);
  EXPECT_GT(fit(*gmlp.curve(Pass::backward), 512)->memory, 1.4);
}

// one matrix of weights would be 16 MB
TEST(MixerBench, DropoutOfAttentionWeightsKeepsMemoryLinear) {
  const auto leaf = [] { return at::randn({1, 2048, 1, 16}).requires_grad_(true); };
  const Tensor q = leaf(), k = leaf(), v = leaf();
  ops::ScoreOptions table, function;
  table.dropout = function.dropout = {.p = 0.1, .key = RandomKey(1)};
  function.term.bias = [](const ops::ScoreBlock& block, const std::vector<Tensor>&) {
    return at::zeros({1, 1, block.q_BHTD.size(2), block.k_BHSD.size(2)}, block.q_BHTD.options());
  };
  ops::count_tensor_memory();
  for (const ops::ScoreOptions& options : {table, function}) {
    memory_meter().restart();
    const int64_t before = memory_meter().held();
    ops::attention_equal(q, k, v, options).sum().backward();
    EXPECT_LT(memory_meter().peak() - before, 12 * kMegabyte);
  }
}

// a batch of short documents is linear in its tokens, whatever the mechanism is in those of one
TEST(MixerBench, DocumentsAreLinearInTheirBatch) {
  MixerBenchOptions options = once({512, 1024, 2048});
  options.document = 20;
  for (const char* name : {"attention", "gmlp", "gau", "mlstm", "memorizing", "pattern/window"}) {
    const Cost cost = measured(name, options);
    EXPECT_EQ(cost.claim.time, Growth::linear) << name;
    EXPECT_FALSE(cost.step) << name;
    for (const Curve& curve : cost.curves) {
      ASSERT_EQ(curve.points.size(), 3u) << name;
      EXPECT_LT(fit(curve, 512)->memory, 1.1) << name << " " << name_of(curve.pass);
    }
  }
}

TEST(MixerBench, LengthsBeyondTheLimitAreLeftOut) {
  MixerBenchOptions options;
  options.width = 32;
  options.lengths = {16, 32, 64};
  options.repeats = 1;
  options.backward = false;
  options.limit = 1e-9;
  const Cost slow = measured("attention", options);
  ASSERT_EQ(slow.curve(Pass::forward)->points.size(), 1u);
  EXPECT_EQ(slow.curve(Pass::backward), nullptr);
  EXPECT_THAT(slow.curve(Pass::forward)->left_out, HasSubstr("32 tokens and more would take"));
  EXPECT_FALSE(slow.step.has_value());
  options.limit = 60;
  options.memory_limit = 1;
  EXPECT_THAT(measured("attention", options).curve(Pass::forward)->left_out,
              HasSubstr("32 tokens and more would hold"));
}

TEST(MixerBench, StepsWhereThereIsAState) {
  MixerBenchOptions options = once({16, 32});
  options.backward = false;
  const Cost mamba = measured("mamba2", options);
  ASSERT_TRUE(mamba.step.has_value());
  EXPECT_EQ(mamba.step->shallow, 16);
  EXPECT_EQ(mamba.step->deep, 32);
  EXPECT_TRUE(mamba.step->constant_state);
  EXPECT_GT(mamba.step->ratio(), 0);
  ASSERT_TRUE(measured("attention", options).step.has_value());
  EXPECT_FALSE(measured("attention", options).step->constant_state);
  EXPECT_FALSE(measured("cross_attention", options).step->constant_state);
  EXPECT_FALSE(measured("fourier", options).step.has_value());
}

TEST(MixerBench, WhatFailedIsTimedAgain) {
  const MixerBenchOptions options = once({64, 128, 256});
  Cost cost = measured("mamba2", options);
  Curve &forward = cost.curves[0], &backward = cost.curves[1];
  // times that no machine can be blamed for, of what fails and of what holds
  for (Point& p : forward.points) p.seconds = 1e3 * static_cast<double>(p.length * p.length);
  for (Point& p : backward.points) p.seconds = 1e3;
  cost.step->shallow_seconds = 1e3;
  cost.step->deep_seconds = 1e6;
  const Cost before = cost;
  ASSERT_FALSE(timing_holds(cost, options.fit_from));
  measure_again(cost, options);
  for (size_t i = 0; i < forward.points.size(); ++i) {
    EXPECT_LT(forward.points[i].seconds, 1e3);
    EXPECT_EQ(forward.points[i].bytes, before.curves[0].points[i].bytes);
    EXPECT_EQ(backward.points[i].seconds, 1e3) << "its claim holds";
  }
  EXPECT_LT(cost.step->shallow_seconds, 1e3);
  EXPECT_LT(cost.step->deep_seconds, 1e3);
}

TEST(MixerBench, ATrueFailureStaysOne) {
  MixerBenchOptions options = once({512, 1024, 2048});
  options.backward = options.step = false;
  Cost cost = measured("attention", options);
  cost.claim.time = Growth::constant;
  const Cost before = cost;
  ASSERT_FALSE(timing_holds(cost, options.fit_from));
  measure_again(cost, options);
  EXPECT_FALSE(timing_holds(cost, options.fit_from));
  for (size_t i = 0; i < cost.curves[0].points.size(); ++i)
    EXPECT_LE(cost.curves[0].points[i].seconds, before.curves[0].points[i].seconds);
}

TEST(MixerBench, EveryMechanismRuns) {
  const MixerBenchOptions options = once({16, 32});
  for (const spec::Mechanism* mechanism : cost_mechanisms()) {
    SCOPED_TRACE(mechanism->name);
    Cost cost;
    EXPECT_NO_THROW(cost = measure_cost(*mechanism, options));
    if (cost.mechanism == nullptr) continue;
    for (const Pass pass : {Pass::forward, Pass::backward})
      EXPECT_EQ(cost.curve(pass)->points.size(), 2u) << cost.curve(pass)->left_out;
  }
}

TEST(MixerBench, StopsWhenAsked) {
  CancelToken cancel;
  MixerBenchOptions options;
  options.lengths = {16};
  options.cancel = &cancel;
  int said = 0;
  options.progress = [&](const std::string&) {
    ++said;
    cancel.request();
  };
  test::expect_error(ErrorKind::cancelled, "", [&] { measured("attention", options); });
  EXPECT_EQ(said, 1);
}

}  // namespace
}  // namespace tessera::analysis::mixer_bench_test
