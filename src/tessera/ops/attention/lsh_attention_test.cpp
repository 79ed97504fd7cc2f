// LSH attention against the published numbers and the definition of its lists.
#include "tessera/ops/attention/lsh_attention.h"

#include <algorithm>
#include <limits>

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::lsh_attention_test {
namespace {

TEST(Lsh, GoldenG7) {
  const auto run = [](bool causal, at::ScalarType type, Tensor* lse) {
    Lsh how{2, 1, 0, causal, {tensor({0.3, -0.8}, {1, 1, 2, 1})}};
    const Tensor qk = gen({4, 2}, 1.9, 0.5).to(type).unsqueeze(1),
                 v = gen({4, 2}, 0.71, 0.05).to(type).unsqueeze(1);
    EXPECT_TRUE(at::equal(lsh_buckets(qk, how).reshape({4}), at::tensor({1, 1, 0, 1}, at::kLong)));
    return lsh_attention(qk, v, how, lse).reshape({4, 2});
  };
  const Tensor open = tensor({-0.1296155533, -0.4272835457, -0.4977378494, -0.5068392993,
                              0.05844499822, 0.393920058, 0.5194499219, 0.6349728676},
                             {4, 2}),
               causal = tensor({0.04997916927, 0.6889214451, 0.04997916927, 0.6889214451,
                                0.2977510928, 0.7233185103, 0.5194499219, 0.6349728676},
                               {4, 2});
  expect_both([&](at::ScalarType type) { return run(false, type, nullptr); }, open, 1e-9);
  expect_both([&](at::ScalarType type) { return run(true, type, nullptr); }, causal, 1e-9);
  Tensor lse;
  run(false, at::kDouble, &lse);
  expect_near(lse.reshape({4}), tensor({1.108008951, 0.9397740194, 0.6406015894, 1.274429087}),
              1e-9);
  run(true, at::kDouble, &lse);
  expect_near(lse.reshape({4}), tensor({-100000, -0.5980318629, 0.42183081, 1.274429087}), 1e-9);
}

TEST(Lsh, BucketCountsOfTheReleasedCode) {
  using Factors = std::vector<int64_t>;
  EXPECT_EQ(lsh_bucket_factors(512, 64, 4096), (Factors{16}));
  EXPECT_EQ(lsh_bucket_factors(4096, 64, 4096), (Factors{128}));
  EXPECT_EQ(lsh_bucket_factors(16384, 64, 65536), (Factors{16, 32}));
  EXPECT_EQ(lsh_bucket_factors(65536, 64, 524288), (Factors{32, 64}));
}

TEST(Lsh, RotationsOfTorch) {
  // torch.manual_seed(3); torch.randn(2, 3, 2, 3), split behind the first column
  const auto rotations = lsh_torch_rotations(3, {2, 4}, 2, 2, 3);
  ASSERT_EQ(rotations.size(), 2u);
  EXPECT_EQ(rotations[0].sizes().vec(), (std::vector<int64_t>{2, 2, 3, 1}));
  EXPECT_EQ(rotations[1].sizes().vec(), (std::vector<int64_t>{2, 2, 3, 2}));
  expect_near(
      rotations[0].flatten().narrow(0, 0, 4),
      tensor({-0.07664429396390915, 1.6205507516860962, 0.9131519198417664, -0.5144619941711426}),
      1e-6);
  expect_near(
      rotations[1].flatten().narrow(0, 0, 4),
      tensor({0.35988152027130127, -0.7820168137550354, -1.596708059310913, -0.05168096348643303}),
      1e-6);
  expect_near(rotations[1].to(at::kDouble).sum(),
              at::scalar_tensor(-0.6510324738919735, at::kDouble), 1e-5);
  // few numbers are drawn by another routine: torch.manual_seed(5); torch.randn(1, 2, 1, 2)
  expect_near(
      lsh_torch_rotations(5, {4}, 1, 1, 2)[0].flatten(),
      tensor({-0.4867807626724243, -0.6038215756416321, -0.5580962300300598, 0.6675242781639099}),
      1e-6);
}

/// Item after item, from the text of the definition, with finite masks.
Tensor by_definition(const Tensor& qk, const Tensor& v, const Lsh& how) {
  const int64_t t = qk.size(0), heads = qk.size(1), rounds = how.rounds();
  const Tensor buckets = lsh_buckets(qk, how);
  Tensor out = at::zeros_like(v);
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<int64_t> list;  // tokens of all rounds, sorted, -1 = padding
    std::vector<int64_t> home;  // their buckets, other ones in every round
    for (int64_t r = 0; r < rounds; ++r) {
      std::vector<std::pair<int64_t, int64_t>> items;
      for (int64_t i = 0; i < t; ++i) items.emplace_back(buckets[r][h][i].item<int64_t>(), i);
      std::sort(items.begin(), items.end());
      for (const auto& item : items) {
        list.push_back(item.second);
        home.push_back(1000 * r + item.first);
      }
      const int64_t unit = how.pad_to == 0 ? how.chunk : how.pad_to;
      while (static_cast<int64_t>(list.size()) % unit != 0) list.push_back(-1), home.push_back(-1);
    }
    const auto chunks = static_cast<int64_t>(list.size()) / how.chunk;
    for (int64_t i = 0; i < t; ++i) {
      std::vector<double> lambdas;
      std::vector<Tensor> outputs;
      for (size_t p = 0; p < list.size(); ++p) {
        if (list[p] != i) continue;
        const int64_t own = static_cast<int64_t>(p) / how.chunk;
        std::vector<double> logits;
        std::vector<int64_t> keys;
        std::vector<Tensor> values;
        for (int64_t d = -how.before; d <= how.after; ++d)
          for (int64_t o = 0; o < how.chunk; ++o) {
            const auto at = static_cast<size_t>((own + d + chunks) % chunks * how.chunk + o);
            const int64_t j = list[at];
            const Tensor key = qk[std::max<int64_t>(j, 0)][h];
            const Tensor unit = key / std::sqrt(static_cast<double>(key.numel())) /
                                at::sqrt(key.square().mean() + 1e-6);
            double logit = (qk[i][h] * unit).sum().item<double>();
            if (j < 0 || (how.causal && j > i)) logit = -1e9;
            if (how.same_bucket_only && home[at] != home[p]) logit = -1e9;
            if (j == i) logit = -1e5;
            logits.push_back(logit);
            keys.push_back(logit > -1e8 ? j : -1);
            values.push_back(v[std::max<int64_t>(j, 0)][h]);
          }
        for (size_t n = 0; how.dedupe && n < keys.size(); ++n)
          logits[n] -= std::log(static_cast<double>(std::count(keys.begin(), keys.end(), keys[n])));
        const Tensor s = at::tensor(logits, at::kDouble);
        lambdas.push_back(at::logsumexp(s, 0).item<double>());
        outputs.push_back(at::mv(at::stack(values).t(), at::softmax(s, 0)));
      }
      const Tensor weights = at::softmax(at::tensor(lambdas, at::kDouble), 0);
      out[i][h].copy_(at::mv(at::stack(outputs).t(), weights));
    }
  }
  return out;
}

TEST(Lsh, AgainstTheDefinition) {
  struct Kind {
    int64_t t, chunk, before, after, rounds;
    std::vector<int64_t> factors;
    int64_t pad_to = 0;
  };
  Tensor plain;
  for (const Kind& kind :
       {Kind{12, 4, 1, 0, 1, {4}}, Kind{13, 4, 1, 0, 2, {4}}, Kind{17, 3, 1, 1, 3, {2, 4}},
        Kind{9, 4, 0, 0, 2, {6}}, Kind{13, 4, 1, 0, 2, {4}, 12}, Kind{7, 4, 1, 1, 2, {2}}})
    for (const bool causal : {true, false})
      for (const auto& [same_bucket_only, dedupe] :
           {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        Lsh how{kind.chunk,
                kind.before,
                kind.after,
                causal,
                lsh_rotations(RandomKey(5), kind.factors, kind.rounds, 2, 3),
                kind.pad_to};
        how.same_bucket_only = same_bucket_only;
        how.dedupe = dedupe;
        const auto run = [&](at::ScalarType type) {
          return lsh_attention(gen({kind.t, 2, 3}, 1.9, 0.5).to(type) * 2,
                               gen({kind.t, 2, 4}, 0.71, 0.05).to(type), how);
        };
        const Tensor want =
            by_definition(gen({kind.t, 2, 3}, 1.9, 0.5) * 2, gen({kind.t, 2, 4}, 0.71, 0.05), how);
        expect_both(run, want, 1e-12);
        // each option is a function of its own where a key comes twice
        if (kind.t != 7) continue;
        if (!same_bucket_only && !dedupe)
          plain = want;
        else
          EXPECT_GT((want - plain).abs().max().item<double>(), 1e-3);
      }
}

}  // namespace
}  // namespace tessera::ops::lsh_attention_test
