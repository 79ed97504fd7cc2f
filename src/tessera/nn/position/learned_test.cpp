// Learned positions of documents longer than their table.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/position/position_testing.h"

namespace tessera::nn::learned_test {
namespace {

/// What the scheme adds to the embeddings of documents of these lengths.
Tensor added(const spec::Json& json, const Tensor& table, const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> documents;
  int64_t n = 0;
  for (const int64_t length : lengths) {
    documents.emplace_back(static_cast<size_t>(length), 0);
    n += length;
  }
  const Batch batch = Batch::of(documents);
  Context context;
  context.batch = &batch;
  context.causal = false;
  return Scheme(json, {{"weight", table}}, 1, table.size(1), false)
      .make(at::kDouble)
      ->embed(at::zeros({n, table.size(1)}, at::kDouble), context, nullptr);
}

TEST(LearnedPositions, ATableIsStretchedLinearlyOverLongerDocuments) {
  const Tensor table = ops::gen({6, 3}, 0.7, 0.2);
  const spec::Json json = {
      {"type", "learned"}, {"n_positions", 6}, {"offset", 1}, {"longer", "interpolate"}};
  const Tensor own = table.narrow(0, 1, 5);  // the rows of positions
  // as torch stretches a signal whose samples are the middles of their cells
  const auto stretched = [&](int64_t length) {
    return at::upsample_linear1d(own.t().unsqueeze(0), {length}, /*align_corners=*/false)
        .squeeze(0)
        .t();
  };
  for (const int64_t length : {6, 9, 10, 23})
    ops::expect_near(added(json, table, {length}), stretched(length), 1e-14);
  // documents that fit keep the table, beside others that do not
  ops::expect_near(added(json, table, {3, 8, 5}), at::cat({own.narrow(0, 0, 3), stretched(8), own}),
                   1e-14);
  ops::expect_near(added(json, table, {5}), own, 0);
}

TEST(LearnedPositions, OnlyAnEncoderStretches) {
  register_mechanisms();
  spec::Scope scope;
  scope.width = 4;
  scope.places = {.embedding = true};
  const spec::Json json = {{"type", "learned"}, {"n_positions", 6}, {"longer", "interpolate"}};
  test::expect_error(ErrorKind::spec, "longer interpolate needs an encoder",
                     [&] { spec::read_part(spec::Slot::position, json, scope); });
  scope.causal = false;
  EXPECT_EQ(spec::read_part(spec::Slot::position, json, scope).config->max_positions(), 0);
}

}  // namespace
}  // namespace tessera::nn::learned_test
