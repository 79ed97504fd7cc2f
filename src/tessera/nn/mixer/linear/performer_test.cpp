// The Performer as a mixer: its directions, and what it costs to keep.
#include "tessera/nn/mixer/linear/performer.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/linear/performer.h"

namespace tessera::nn::performer_test {
namespace {

TEST(Performer, IsFavorOfItsProjections) {
  MixerUnderTest m(R"({"type": "performer", "n_heads": 2, "n_features": 5, "seed": 9})", 6);
  m.fill();
  const Tensor x = ops::gen({9, 6}, 1.1, 0.3);
  const auto heads = [&](const char* name) {
    return at::matmul(x, m.values[name].t()).reshape({1, 9, 2, 3});
  };
  const ops::Favor in{
      heads("q.weight"),
      heads("k.weight"),
      heads("v.weight"),
      ops::favor_directions(RandomKey(9).fold(".directions"), 5, 3, ops::FavorRows::orthogonal),
      ops::FavorKernel::softmax,
      1e-6};
  const Tensor want =
      at::matmul(ops::favor_chunked(in, 1).first.reshape({9, 6}), m.values["o.weight"].t());
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {4, 1, 4}); }, want, 1e-12);
}

/// sum_j k(q_i, k_j) v_j / sum_j k(q_i, k_j) by heads, k of phi, in double.
Tensor by_kernel(const MixerUnderTest& m,
                 const Tensor& x_TD,
                 bool causal,
                 const std::function<Tensor(const Tensor&)>& phi) {
  const int64_t t = x_TD.size(0);
  const auto heads = [&](const char* name) {
    return at::matmul(x_TD, m.values.at(name).t()).reshape({t, 2, 3}).transpose(0, 1);
  };
  Tensor weights =
      at::matmul(phi(heads("q.weight")), phi(heads("k.weight")).transpose(1, 2));  // [H, T, T]
  if (causal) weights = weights.tril();
  const Tensor o = at::matmul(weights / weights.sum(-1, true), heads("v.weight"));
  return at::matmul(o.transpose(0, 1).reshape({t, 6}), m.values.at("o.weight").t());
}

TEST(Performer, TrigonometricFeaturesAreSinesAndCosines) {
  const Tensor x = ops::gen({9, 6}, 1.1, 0.3),
               w = ops::favor_directions(RandomKey(9).fold(".directions"), 40, 3,
                                         ops::FavorRows::orthogonal);
  for (const bool causal : {true, false}) {
    MixerUnderTest m(R"({"type": "performer", "n_heads": 2, "n_features": 40, "seed": 9,
        "features": "trigonometric", "chunk": 4})",
                     6, causal);
    m.fill();
    const Tensor want = by_kernel(m, x, causal, [&](const Tensor& h_HTD) {
      const Tensor y = h_HTD * std::pow(3.0, -0.25), s = at::matmul(y, w.t());
      return (y.square().sum(-1, true) / 2).exp() * at::cat({s.sin(), s.cos()}, -1) /
             std::sqrt(40.0);
    });
    if (causal)
      m.expect_everywhere(x, want, 1e-11);
    else
      m.expect(x, want, 1e-11);
  }
}

TEST(Performer, TrigonometricFeaturesEstimateSoftmax) {
  const Tensor x = ops::gen({9, 6}, 1.1, 0.3);
  MixerUnderTest exact(R"({"type": "attention", "n_heads": 2})", 6);
  exact.fill();
  const Tensor want = exact.run(x, at::kDouble);
  const auto error = [&](int64_t n) {
    MixerUnderTest m(fmt::format(R"({{"type": "performer", "n_heads": 2, "n_features": {},
        "features": "trigonometric"}})",
                                 n),
                     6);
    m.values = exact.values;
    return (m.run(x, at::kDouble) - want).abs().max().item<double>();
  };
  EXPECT_LT(error(4000), 0.02);
  EXPECT_GT(error(4), error(4000));
}

TEST(Performer, ReluWithoutDirections) {
  const Tensor x = ops::gen({9, 6}, 1.1, 0.3);
  for (const bool causal : {true, false}) {
    MixerUnderTest m(
        R"({"type": "performer", "n_heads": 2, "features": "relu_deterministic", "chunk": 4})", 6,
        causal);
    m.fill();
    const Tensor want = by_kernel(m, x, causal, [](const Tensor& h) { return at::relu(h) + 1e-3; });
    if (causal)
      m.expect_everywhere(x, want, 1e-11);
    else
      m.expect(x, want, 1e-11);
  }
}

TEST(Performer, TrainingMayDrawOtherDirections) {
  MixerUnderTest m(R"({"type": "performer", "n_heads": 1, "n_features": 3, "redraw_every": 10})",
                   4);
  m.fill();
  const auto mixer = build_mixer(m.part, m.builder(at::kDouble));
  const Tensor x = ops::gen({5, 4}, 1.1, 0.3);
  Batch batch;
  batch.segments = {{0, 0, 5, 0}};
  batch.number();
  const auto run = [&](int64_t step, bool training) {
    Context context;
    context.batch = &batch;
    context.training = training;
    context.key = RandomKey(1).fold(static_cast<uint64_t>(step));
    context.step = step;
    return mixer->forward(x, context, nullptr);
  };
  EXPECT_TRUE(at::equal(run(10, true), run(19, true)));
  EXPECT_FALSE(at::equal(run(9, true), run(10, true)));
  EXPECT_FALSE(at::equal(run(10, true), run(20, true)));
  // evaluation keeps what training began with
  EXPECT_TRUE(at::equal(run(25, false), run(9, true)));
  // sums of other directions say nothing to these
  RowState row(m.state(), 0, at::TensorOptions().dtype(at::kDouble));
  const StateRows rows{&row};
  Context carried;
  carried.batch = &batch;
  carried.training = true;
  test::expect_error(ErrorKind::spec, "train with windows \"isolated\"",
                     [&] { mixer->forward(x, carried, &rows); });
}

}  // namespace
}  // namespace tessera::nn::performer_test
