// The Performer as a mixer: its directions, and what it costs to keep.
#include "tessera/nn/mixer/performer.h"

#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/favor.h"

namespace tessera::nn {
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

TEST(Performer, TrainingMayDrawOtherDirections) {
  MixerUnderTest m(
      R"({"type": "performer", "n_heads": 1, "n_features": 3, "redraw": "every_step"})", 4);
  m.fill();
  const auto mixer = build_mixer(m.part, m.builder(at::kDouble));
  const Tensor x = ops::gen({5, 4}, 1.1, 0.3);
  Batch batch;
  batch.segments = {{0, 0, 5, 0}};
  batch.number();
  const auto run = [&](uint64_t step, bool training) {
    Context context;
    context.batch = &batch;
    context.training = training;
    context.key = RandomKey(1).fold(step);
    return mixer->forward(x, context, nullptr);
  };
  EXPECT_TRUE(at::equal(run(1, true), run(1, true)));
  EXPECT_FALSE(at::equal(run(1, true), run(2, true)));
  EXPECT_TRUE(at::equal(run(1, false), run(2, false)));
}

}  // namespace
}  // namespace tessera::nn
