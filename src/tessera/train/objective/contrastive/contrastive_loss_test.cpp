#include "tessera/train/objective/contrastive/contrastive_loss.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::train::contrastive_loss_test {
namespace {

using ops::gen;

/// Samples in the order of the golden tensors, each text another.
struct Setting {
  Tensor vectors_ND;
  ContrastLayout layout;

  explicit Setting(bool negatives) {
    std::vector<Tensor> all{gen({3, 4}, 0.7, 0.1), gen({3, 4}, 0.55, 0.4)};
    if (negatives) all.push_back(gen({3, 4}, 0.9, -0.3));
    vectors_ND = at::cat(all).requires_grad_(true);
    layout.texts = {0, 1, 2};
    layout.positives = {3, 4, 5};
    if (negatives) layout.negatives = {6, 7, 8}, layout.owner = {0, 1, 2};
    for (int64_t i = 0; i < vectors_ND.size(0); ++i) layout.items.push_back(i);
  }
  double mean(const ContrastiveRecipe& how) const {
    return contrast(vectors_ND, layout, how).loss_B.mean().item<double>();
  }
};

TEST(Contrast, GoldenLosses) {
  const Setting plain(false), hard(true);
  EXPECT_NEAR(plain.mean({}), 3.27785648, 1e-8);
  EXPECT_NEAR(plain.mean({.temperature = 0.5}), 0.54728417, 1e-8);
  EXPECT_NEAR(plain.mean({.temperature = 0.5, .symmetric = true}), 0.49129546, 1e-8);
  EXPECT_NEAR(hard.mean({.temperature = 0.5}), 1.29548841, 1e-8);
  EXPECT_NEAR(hard.mean({.temperature = 0.5, .hard_weight = 1}), 1.67037288, 1e-8);
}

TEST(Contrast, GoldenGradient) {
  const Setting s(false);
  contrast(s.vectors_ND, s.layout, {.temperature = 0.5}).loss_B.mean().backward();
  ops::expect_near(s.vectors_ND.grad()[0],
                   ops::tensor({-0.01593531, -0.00483931, 0.00279650, 0.00281126}), 1e-8);
}

TEST(Contrast, EqualTextsAreNoNegatives) {
  // samples 0 and 2 have the same positive: neither counts that of the other
  Setting s(false);
  s.layout.items[5] = s.layout.items[3];
  const Tensor with = contrast(s.vectors_ND, s.layout, {}).loss_B;
  const auto without = [&](int64_t i, int64_t j) {
    ContrastLayout two = s.layout;
    two.texts = {i, j};
    two.positives = {3 + i, 3 + j};
    return contrast(s.vectors_ND, two, {}).loss_B[0].item<double>();
  };
  EXPECT_NEAR(with[0].item<double>(), without(0, 1), 1e-12);
  EXPECT_NEAR(with[2].item<double>(), without(2, 1), 1e-12);
  EXPECT_GT(with[1].item<double>(), without(1, 0));
  // the same text with other positives: each is right
  Setting t(false);
  t.layout.items[2] = t.layout.items[0];
  EXPECT_NEAR(contrast(t.vectors_ND, t.layout, {}).loss_B[0].item<double>(), without(0, 1), 1e-12);
  // and in both directions
  const double both =
      contrast(t.vectors_ND, t.layout, {.symmetric = true}).loss_B[0].item<double>();
  ContrastLayout two = t.layout;
  two.texts = {0, 1};
  two.positives = {3, 4};
  EXPECT_NEAR(both, contrast(t.vectors_ND, two, {.symmetric = true}).loss_B[0].item<double>(),
              1e-12);
}

TEST(Contrast, PrefixesOfTheVectorsAreLossesOfTheirOwn) {
  const Setting s(true);
  double mean = s.mean({}) / 3;
  for (const int64_t dims : {2, 3}) {
    Setting shorter(true);
    shorter.vectors_ND = s.vectors_ND.detach().narrow(1, 0, dims);
    mean += shorter.mean({}) / 3;
  }
  EXPECT_NEAR(s.mean({.dims = {2, 3}}), mean, 1e-12);
}

TEST(Contrast, RanksCountWhatIsAsNear) {
  const Tensor v = ops::tensor({1, 0, 0, 1, 1, 1, /**/ 1, 0.1, 1, 0, 0, -1}, {6, 2});
  ContrastLayout layout;
  layout.texts = {0, 1, 2};
  layout.positives = {3, 4, 5};
  layout.items = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(ranks(v, layout, 0), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_TRUE(at::equal(contrast(v, layout, {}).ahead_B, at::tensor({1, 1, 2}, at::kLong)));
  // of one channel 1, 1 and 0 are left: the first two are equal to the first text
  EXPECT_EQ(ranks(v, layout, 1), (std::vector<int64_t>{2, 3, 3}));
  layout.items[4] = layout.items[3];
  EXPECT_EQ(ranks(v, layout, 0).front(), 1);
  // all the same: nothing is found
  EXPECT_EQ(ranks(at::ones({6, 2}, at::kDouble), layout, 0)[2], 3);
}

TEST(ContrastLayout, RowsAreSamples) {
  PackedBatch packed;
  for (const int64_t row : {0, 0, 1, 1, 1, 1}) packed.pieces.push_back({row, 0, 1});
  packed.items = {4, 5, 6, 7, 8, 9};
  ContrastLayout layout;
  layout.add(packed);
  layout.add(packed);
  EXPECT_EQ(layout.texts, (std::vector<int64_t>{0, 2, 6, 8}));
  EXPECT_EQ(layout.positives, (std::vector<int64_t>{1, 3, 7, 9}));
  EXPECT_EQ(layout.negatives, (std::vector<int64_t>{4, 5, 10, 11}));
  EXPECT_EQ(layout.owner, (std::vector<int64_t>{1, 1, 3, 3}));
  EXPECT_EQ(layout.items.size(), 12u);
}

}  // namespace
}  // namespace tessera::train::contrastive_loss_test
