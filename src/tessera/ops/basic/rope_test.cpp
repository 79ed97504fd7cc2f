// Rotation against values computed independently in double.
#include "tessera/ops/basic/rope.h"

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::rope_test {
namespace {

/// theta 10000 over r channels
std::vector<double> omegas(int64_t r) {
  std::vector<double> out;
  for (int64_t m = 0; m < r / 2; ++m)
    out.push_back(std::pow(1e4, -2.0 * static_cast<double>(m) / static_cast<double>(r)));
  return out;
}

/// x_ND, one head, token i at position first + i.
Tensor turned(const Tensor& x_ND, int64_t first, int64_t r, bool interleaved, at::ScalarType type) {
  const Tensor positions = at::arange(first, first + x_ND.size(0), at::kLong);
  return rope(x_ND.to(type).unsqueeze(1), rotary_table(positions, omegas(r), 1, type), interleaved)
      .squeeze(1);
}

TEST(Rope, GoldenOfOneVector) {
  const Tensor x = tensor({1, 2, 3, 4}, {1, 4});
  expect_both([&](at::ScalarType t) { return turned(x, 3, 4, true, t); },
              tensor({-1.27223251, -1.83886499, 2.87866810, 4.08818664}, {1, 4}), 1e-8);
  expect_both([&](at::ScalarType t) { return turned(x, 3, 4, false, t); },
              tensor({-1.41335252, 1.87911807, -2.82885748, 4.05819114}, {1, 4}), 1e-8);
}

TEST(Rope, GoldenOfThreePositions) {
  const Tensor q = gen({3, 4}, 0.37, 0.11);
  const auto rows = [&](int64_t r, bool interleaved) {
    return [&q, r, interleaved](at::ScalarType t) {
      return turned(q, 0, r, interleaved, t).narrow(0, 1, 2);
    };
  };
  expect_both(rows(4, false),
              tensor({-0.07018723259, 0.920891533, 1.233242687, 0.4366104724, 0.5337575051,
                      -0.2767087255, 0.322944946, -0.8673041609},
                     {2, 4}),
              1e-9);
  expect_both(rows(4, true),
              tensor({-0.2383359673, 1.341209748, 0.721074391, 0.4346122344, 0.2375642969,
                      0.1873898867, -0.6023821111, -0.8738184972},
                     {2, 4}),
              1e-9);
  // partial: two of four channels
  for (const bool interleaved : {false, true})
    expect_both([&](at::ScalarType t) { return turned(q, 0, 2, interleaved, t)[1]; },
                tensor({-0.2383359673, 1.341209748, 0.7253843875, 0.4273798802}), 1e-9);
}

TEST(Rope, GoldenOfCausalAttention) {
  const Tensor q = gen({3, 4}, 0.37, 0.11), k = gen({3, 4}, 0.53, 0.29),
               v = gen({3, 4}, 0.71, 0.05);
  const auto rows = [&](bool interleaved) {
    return [&, interleaved](at::ScalarType t) {
      const Tensor qr = turned(q, 0, 4, interleaved, t).unsqueeze(1),
                   kr = turned(k, 0, 4, interleaved, t).unsqueeze(1);
      return attention(qr, {{kr, v.to(t).unsqueeze(1), 0}}, 0, {.scale = 0.5})
          .squeeze(1)
          .narrow(0, 1, 2);
    };
  };
  expect_both(rows(false),
              tensor({0.103947528, 0.3820269742, 0.4754818576, 0.339147653, -0.07704195691,
                      -0.001272430808, 0.07511203088, 0.1151966321},
                     {2, 4}),
              1e-9);
  expect_both(rows(true),
              tensor({0.1088442133, 0.3541816644, 0.4283515296, 0.2955092747, -0.08695625969,
                      -0.03747018648, 0.03012433786, 0.08316048523},
                     {2, 4}),
              1e-9);
}

TEST(Rope, Invariants) {
  const Tensor q = gen({3, 8}, 0.37, 0.11), k = gen({3, 8}, 0.53, 0.29);
  for (const bool interleaved : {false, true}) {
    // position 0 changes nothing; norms are kept; scores depend on the distance
    expect_near(turned(q.narrow(0, 0, 1), 0, 8, interleaved, at::kDouble), q.narrow(0, 0, 1),
                1e-15);
    expect_near(turned(q, 5, 8, interleaved, at::kDouble).norm(2, -1), q.norm(2, -1), 1e-14);
    const auto scores = [&](int64_t first) {
      return at::matmul(turned(q, first, 8, interleaved, at::kDouble),
                        turned(k, first, 8, interleaved, at::kDouble).t());
    };
    expect_near(scores(1000), scores(0), 1e-12);
    // turning twice by one position is turning by two
    const Tensor once = turned(q.narrow(0, 0, 1), 1, 8, interleaved, at::kDouble);
    expect_near(turned(once, 1, 8, interleaved, at::kDouble),
                turned(q.narrow(0, 0, 1), 2, 8, interleaved, at::kDouble), 1e-14);
  }
  // the layouts are one rotation of permuted channels
  const Tensor order = at::tensor(std::vector<int64_t>{0, 2, 4, 6, 1, 3, 5, 7}, at::kLong);
  expect_near(turned(q.index_select(1, order), 3, 8, false, at::kDouble),
              turned(q, 3, 8, true, at::kDouble).index_select(1, order), 1e-15);
}

}  // namespace
}  // namespace tessera::ops::rope_test
