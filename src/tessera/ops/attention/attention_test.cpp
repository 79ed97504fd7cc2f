// Softmax attention: values computed independently in double, and what must hold for any input.
#include "tessera/ops/attention/attention.h"

#include "tessera/ops/attention/documents_attention.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::attention_test {
namespace {

const double kTau = 1 / std::sqrt(2.0);

struct Core {
  Tensor q = gen({4, 2}, 0.7, 0.1), k = gen({4, 2}, 0.5, 0.3),
         v = gen({4, 2}, 0.9, 0.2);  // one head
};

Tensor attend(const Core& in, const ScoreOptions& options, at::ScalarType type) {
  const auto head = [&](const Tensor& x) { return x.to(type).unsqueeze(1); };
  return attention(head(in.q), {{head(in.k), head(in.v), 0}}, 0, options).squeeze(1);
}

TEST(Attention, GoldenCore) {
  const Core in;
  expect_both([&](at::ScalarType t) { return attend(in, {.scale = kTau}, t); },
              tensor({0.1986693308, 0.8912073601, 0.6603813194, 0.4676147093, 0.1212608142,
                      -0.0239336695, -0.3409657827, 0.1313776331},
                     {4, 2}),
              1e-9);
  expect_both([&](at::ScalarType t) { return attend(in, {.scale = kTau, .softcap = 0.5}, t)[3]; },
              tensor({-0.1897397918, 0.1179163560}), 1e-9);
  expect_both([&](at::ScalarType t) { return attend(in, {.scale = kTau, .window = 2}, t)[3]; },
              tensor({-0.6268675619, -0.0602747904}), 1e-9);
}

TEST(Attention, DocumentsSideBySideHaveTheBitsOfEachAlone) {
  const at::NoGradGuard no_gradients;
  // one that is longer than a block of keys, and one without tokens
  const std::vector<int64_t> lengths = {3, 300, 0, 64, 17};
  const Tensor q = gen({384, 4, 6}, 0.7, 0.1).to(at::kFloat),
               k = gen({384, 2, 6}, 0.5, 0.3).to(at::kFloat),
               v = gen({384, 2, 6}, 0.9, 0.2).to(at::kFloat);
  for (const bool causal : {false, true})
    for (const int64_t window : {0, 8}) {
      const ScoreOptions options{.scale = kTau, .causal = causal, .window = window};
      const Tensor got = attention_kernel_of_documents(q, k, v, lengths, options);
      int64_t begin = 0;
      for (const int64_t n : lengths) {
        if (n > 0) {
          EXPECT_TRUE(
              at::equal(got.narrow(0, begin, n),
                        attention(q.narrow(0, begin, n),
                                  {{k.narrow(0, begin, n), v.narrow(0, begin, n), 0}}, 0, options)))
              << n << " tokens";
        }
        begin += n;
      }
    }
  EXPECT_THROW(attention_kernel_of_documents(q, k, v, {3, 4}, {}), Error);
}

TEST(Attention, GoldenGroupedHeads) {
  // head-major goldens: [H, T, D] -> [T, H, D]
  const auto heads_last = [](const Tensor& x, at::ScalarType t) { return x.to(t).transpose(0, 1); };
  const Tensor q = gen({4, 3, 2}, 0.37, 0.11), k = gen({2, 3, 2}, 0.53, 0.29),
               v = gen({2, 3, 2}, 0.71, 0.05);
  const Tensor want = tensor(
      {0.04997916927, 0.6889214451,  0.6411554316,  0.7709917949,  0.5654390168,  0.4787215197,
       0.04997916927, 0.6889214451,  0.5198192052,  0.7541472307,  0.3494293079,  0.2491768509,
       -0.9201280538, -0.9530596307, -0.6774824781, -0.2711967126, -0.2036079928, 0.1027325419,
       -0.9201280538, -0.9530596307, -0.7774982174, -0.5522528319, -0.1454217444, 0.08933057269},
      {4, 3, 2});
  expect_both(
      [&](at::ScalarType t) {
        return attention(heads_last(q, t), {{heads_last(k, t), heads_last(v, t), 0}}, 0,
                         {.scale = kTau})
            .transpose(0, 1);
      },
      want, 1e-9);
  // the batched form of training, in float32 the fused one
  for (const auto type : {at::kDouble, at::kFloat})
    expect_near(attention_equal(heads_last(q, type).unsqueeze(0), heads_last(k, type).unsqueeze(0),
                                heads_last(v, type).unsqueeze(0), {.scale = kTau})
                    .squeeze(0)
                    .transpose(0, 1),
                want, type == at::kDouble ? 1e-9 : 2e-6);
}

TEST(Attention, KeysInTwoSpansAreOneSequence) {
  const Core in;
  const auto split = [&](at::ScalarType type) {
    const auto head = [&](const Tensor& x, int64_t from) {
      return x.to(type).unsqueeze(1).narrow(0, from, 2);
    };
    return attention(in.q.to(type).unsqueeze(1),
                     {{head(in.k, 0), head(in.v, 0), 0}, {head(in.k, 2), head(in.v, 2), 2}}, 0,
                     {.scale = kTau})
        .squeeze(1);
  };
  expect_both(split, attend(in, {.scale = kTau}, at::kDouble), 1e-12);
}

TEST(Attention, OrderOfKeysDoesNotMatterWithoutMask) {
  Core in;
  const Tensor want = attend(in, {.scale = kTau, .causal = false}, at::kDouble);
  const Tensor order = at::tensor(std::vector<int64_t>{2, 0, 3, 1}, at::kLong);
  in.k = in.k.index_select(0, order);
  in.v = in.v.index_select(0, order);
  expect_both([&](at::ScalarType t) { return attend(in, {.scale = kTau, .causal = false}, t); },
              want, 1e-12);
}

TEST(Attention, OneKeyGivesItsValueAndEqualValuesGiveThemselves) {
  Core in;
  expect_both([&](at::ScalarType t) { return attend(in, {.scale = kTau}, t)[0]; }, in.v[0], 1e-15);
  in.v = in.v.narrow(0, 0, 1).expand({4, 2}).contiguous();
  for (const double cap : {0.0, 0.5})
    expect_both(
        [&](at::ScalarType t) {
          return attend(in, {.scale = 3, .softcap = cap, .causal = false}, t);
        },
        in.v, 1e-14);
}

TEST(Attention, AFarCapAndAWideWindowChangeNothing) {
  const Core in;
  const Tensor want = attend(in, {.scale = kTau}, at::kDouble);
  expect_near(attend(in, {.scale = kTau, .softcap = 1e6}, at::kDouble), want, 1e-9);
  for (const int64_t window : {4, 5, 1000})
    expect_both([&](at::ScalarType t) { return attend(in, {.scale = kTau, .window = window}, t); },
                want, 1e-15);
}

TEST(Attention, AWindowOfOneGivesTheOwnValue) {
  const Core in;
  for (const bool causal : {true, false})
    expect_both(
        [&](at::ScalarType t) {
          return attend(in, {.scale = kTau, .causal = causal, .window = 1}, t);
        },
        in.v, 1e-15);
}

TEST(Attention, ARowWithoutKeysIsZeroWithZeroGradient) {
  // queries at positions 10 and 11 with a window of 2 see nothing of keys 0 to 3
  const auto out = [&](const Core& in, at::ScalarType type) {
    const auto head = [&](const Tensor& x) { return x.to(type).unsqueeze(1); };
    return attention(head(in.q.narrow(0, 0, 2)), {{head(in.k), head(in.v), 0}}, 10,
                     {.scale = kTau, .window = 2})
        .squeeze(1);
  };
  Core in;
  expect_both([&](at::ScalarType t) { return out(in, t); }, at::zeros({2, 2}, at::kDouble), 0);
  in.q.requires_grad_(true);
  in.v.requires_grad_(true);
  out(in, at::kDouble).sum().backward();
  EXPECT_EQ(in.q.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(in.v.grad().abs().max().item<double>(), 0);
}

TEST(Attention, FutureKeysLeaveTheBitsAlone) {
  const Core in;
  Core other;
  other.k = in.k.clone();
  other.v = in.v.clone();
  other.k[3].fill_(9);
  other.v[3].fill_(-9);
  for (const auto type : {at::kDouble, at::kFloat}) {
    const at::NoGradGuard no_gradients;
    EXPECT_TRUE(at::equal(attend(in, {.scale = kTau}, type).narrow(0, 0, 3),
                          attend(other, {.scale = kTau}, type).narrow(0, 0, 3)));
    EXPECT_FALSE(
        at::equal(attend(in, {.scale = kTau}, type)[3], attend(other, {.scale = kTau}, type)[3]));
  }
}

}  // namespace
}  // namespace tessera::ops::attention_test
