// What the tests of indexers share: the indexer is the part `select` of the attention under test.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn {

/// Under choices of all keys, attention is bit-identical to `dense`, the same without an indexer,
/// however x is cut into `calls`.
inline void expect_dense_bits(MixerUnderTest& selected,
                              MixerUnderTest& dense,
                              const Tensor& x,
                              const std::vector<std::vector<int64_t>>& calls) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const bool record : {true, false}) {
      const at::AutoGradMode mode(record);
      for (const std::vector<int64_t>& cut : calls)
        EXPECT_TRUE(at::equal(selected.run(x, type, cut), dense.run(x, type, cut)));
    }
}

/// All forms agree, and the bits of float32 do not depend on how x is cut into calls.
inline void expect_same_choice(MixerUnderTest& m,
                               const Tensor& x,
                               const std::vector<std::vector<int64_t>>& calls) {
  m.expect_everywhere(x, m.run(x, at::kDouble), 1e-12);
  const at::NoGradGuard no_gradients;
  const Tensor whole = m.run(x, at::kFloat);
  for (const std::vector<int64_t>& cut : calls)
    EXPECT_TRUE(at::equal(m.run(x, at::kFloat, cut), whole));
}

/// The loss of the indexer, in double on documents of these lengths, reaches its parameters alone,
/// and the output all others.
inline void expect_learns_alone(MixerUnderTest& m, const std::vector<int64_t>& lengths) {
  for (auto& [name, value] : m.values) value.requires_grad_(true);
  Batch batch;
  int64_t n = 0;
  for (const int64_t length : lengths) {
    batch.segments.push_back({static_cast<int64_t>(batch.segments.size()), n, length, 0});
    n += length;
  }
  batch.number();
  Context context;
  std::map<std::string, Tensor> losses;
  context.add_loss = [&](const std::string& name, const Tensor& loss) { losses[name] = loss; };
  const Tensor y = m.forward(ops::gen({n, 8}, 1.7, 0.4), batch, at::kDouble, context);
  ASSERT_EQ(losses.size(), 1u);
  const Tensor loss = losses.at("indexer_kl");
  EXPECT_GT(loss.item<double>(), 0);
  loss.backward();
  for (auto& [name, value] : m.values) {
    EXPECT_EQ(value.grad().defined(), name.starts_with("select.")) << name;
    value.mutable_grad() = Tensor();
  }
  y.sum().backward();
  for (const auto& [name, value] : m.values)
    EXPECT_EQ(value.grad().defined(), !name.starts_with("select.")) << name;
  // the kernels report the same loss
  const double of_doubles = loss.item<double>();
  const at::NoGradGuard no_gradients;
  Context of_floats;
  of_floats.add_loss = context.add_loss;
  m.forward(ops::gen({n, 8}, 1.7, 0.4), batch, at::kFloat, of_floats);
  EXPECT_NEAR(losses.at("indexer_kl").item<double>(), of_doubles, 1e-5);
}

}  // namespace tessera::nn
