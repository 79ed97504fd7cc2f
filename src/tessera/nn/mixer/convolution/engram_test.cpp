// Engram against the numbers of tools/golden/ngram_memory.py, and its forms against each other.
// tests/golden/families/qwen4_exp_text holds the published one.
#include "tessera/nn/mixer/convolution/engram.h"

#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::engram_test {
namespace {

using ops::gen;
using testing::HasSubstr;

const std::vector<int64_t> kTokens = {5, 7, 5, 2, 11, 7, 5};

/// With an input of `streams` streams.
MixerUnderTest engram(const std::string& more, int64_t d_model, int64_t streams = 1) {
  MixerUnderTest m(R"({"type": "engram", "ngram": 2, "heads": 1, "width": 1})", d_model);
  m.scope.vocab = 13;
  m.scope.d_in = streams * d_model;
  m.json = spec::parse_json(R"({"type": "engram", "heads": 2)" + more + "}", "test");
  m.read();
  return m;
}

EngramConfig config_of(const MixerUnderTest& m) {
  return dynamic_cast<const EngramConfig&>(*m.part.config);
}

/// One document, in calls of the given lengths with a state, or whole.
Tensor run(const MixerUnderTest& m,
           const Tensor& x_TC,
           const std::vector<int64_t>& tokens,
           const std::vector<int64_t>& calls = {}) {
  const int64_t before = config_of(m).ids_before();
  const auto mixer = build_mixer(m.part, m.builder(x_TC.scalar_type()));
  RowState state(m.state(), 0, at::TensorOptions().dtype(x_TC.scalar_type()));
  std::vector<Tensor> out;
  int64_t begin = 0;
  for (const int64_t n : calls.empty() ? std::vector<int64_t>{x_TC.size(0)} : calls) {
    Batch batch;
    batch.segments = {{0, 0, n, begin}};
    batch.ids_N = at::empty({n}, at::kLong);
    batch.before_NM = at::full({n, before}, -1, at::kLong);
    for (int64_t t = 0; t < n; ++t) {
      batch.ids_N[t] = tokens[static_cast<size_t>(begin + t)];
      for (int64_t m_ = 0; m_ < std::min(before, begin + t); ++m_)
        batch.before_NM[t][m_] = tokens[static_cast<size_t>(begin + t - 1 - m_)];
    }
    batch.number();
    Context context;
    context.batch = &batch;
    const StateRows rows{&state};
    out.push_back(
        run_mixer(*mixer, x_TC.narrow(0, begin, n), context, calls.empty() ? nullptr : &rows));
    begin += n;
  }
  return at::cat(out);
}

TEST(Engram, HashesAsTheGoldenDoes) {
  const NgramHash hash =
      config_of(engram(R"(, "rows": 10, "width": 8, "seed": 4, "index": 1)", 3)).hash(13);
  EXPECT_EQ(hash.factors,
            (std::vector<int64_t>{504849803268675403, 198995171801090195, 287761774195205163}));
  EXPECT_EQ(hash.sizes, (std::vector<int64_t>{23, 29, 31, 37}));
  EXPECT_EQ(hash.total(), 120);
  std::vector<int64_t> rows(4);
  hash.rows(std::vector<int64_t>{11, 2, 2}, rows);
  EXPECT_EQ(rows, (std::vector<int64_t>{4, 50, 64, 84}));
  hash.rows(std::vector<int64_t>{11, 2, 5}, rows);
  EXPECT_EQ(rows, (std::vector<int64_t>{4, 50, 57, 105}));
}

// successors of attention 8
TEST(Engram, HashesByGivenFactorsAndSizes) {
  const NgramHash hash{{2 * 123456789012 + 1, 2 * 987654321098 + 1, 2 * 555555555555 + 1},
                       {1009, 1013, 1019, 1021}};
  const std::vector<std::vector<int64_t>> runs = {{5, 2, 2},
                                                  {7, 5, 2},
                                                  {5, 7, 5},
                                                  {7, 5, 7},
                                                  {11, 7, 5}},
                                          want = {{214, 939, 310, 99},
                                                  {935, 764, 806, 493},
                                                  {672, 867, 347, 724},
                                                  {935, 764, 393, 458},
                                                  {588, 685, 936, 623}};
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<int64_t> rows(4);
    hash.rows(runs[i], rows);
    int64_t offset = 0;
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_EQ(rows[head] - offset, want[i][head]) << i;
      offset += hash.sizes[head];
    }
  }
}

MixerUnderTest golden(const std::string& more = "") {
  MixerUnderTest m = engram(
      R"(, "rows": 10, "width": 8, "seed": 4, "index": 1, "pad": 2, "cut": true, "d_conv": 2)" +
          more,
      3, 2);
  m.values["table.weight"] = gen({120, 2}, 0.7, 0.1);
  m.values["key.weight"] = gen({6, 8}, 0.6, 0.1);
  m.values["value.weight"] = gen({3, 8}, 0.4, 0.5);
  m.values["key_norm.weight"] = 1 + 0.3 * gen({6}, 0.8, 0.0);
  m.values["query_norm.weight"] = 1 + 0.3 * gen({6}, 0.8, 0.1);
  m.values["conv_norm.weight"] = 1 + 0.3 * gen({6}, 0.8, 0.2);
  m.values["conv.weight"] = gen({6, 2}, 0.9, 0.1);
  return m;
}

TEST(Engram, IsItsPlainForm) {
  const MixerUnderTest m = golden();
  m.expect_all_given();
  const Tensor want =
      ops::tensor({1.26588411, -0.81022301, 0.30010893, 1.56885204, -2.08512995, 1.7450047,
                   -1.31132177, 2.33435912, 0.6899017, -0.68815926, 2.4957948, -0.97161052,
                   -0.49237379, 0.09919917, 0.17821167, -0.37987646, 0.18091416, 0.29971097},
                  {3, 6});
  const Tensor x = gen({7, 6}, 0.5, 0.3);
  ops::expect_near(run(m, x, kTokens).narrow(0, 4, 3), want, 1e-8);
  for (const std::vector<int64_t>& calls :
       {std::vector<int64_t>{7}, {1, 6}, {4, 2, 1}, std::vector<int64_t>(7, 1)})
    ops::expect_near(run(m, x, kTokens, calls).narrow(0, 4, 3), want, 1e-8);
  const at::NoGradGuard no_gradients;
  const Tensor whole = run(m, x.to(at::kFloat), kTokens);
  ops::expect_near(whole.narrow(0, 4, 3), want, 1e-5);
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{3, 4}, std::vector<int64_t>(7, 1)})
    EXPECT_TRUE(at::equal(run(m, x.to(at::kFloat), kTokens, calls), whole));
}

TEST(Engram, ReadsTheWeightsOfNormsAsTheySay) {
  MixerUnderTest plain = golden(), one = golden(R"(, "norm_weight": "plus_one")"),
                 none = golden(R"(, "norm_weight": "none")");
  for (const char* name : {"key_norm.weight", "query_norm.weight", "conv_norm.weight"}) {
    one.values[name] = one.values[name] - 1;
    none.values.erase(name);
  }
  none.expect_all_given();
  const Tensor x = gen({7, 6}, 0.5, 0.3), want = run(plain, x, kTokens);
  ops::expect_near(run(one, x, kTokens), want, 1e-12);
  for (const char* name : {"key_norm.weight", "query_norm.weight", "conv_norm.weight"})
    plain.values[name] = at::ones_like(plain.values[name]);
  ops::expect_near(run(none, x, kTokens), run(plain, x, kTokens), 1e-12);
}

// a token of the past that no n-gram and no tap reaches has no effect
TEST(Engram, SeesItsNgramsAndTapsAlone) {
  const MixerUnderTest m = golden();
  const Tensor x = gen({7, 6}, 0.5, 0.3), want = run(m, x, kTokens);
  std::vector<int64_t> other = kTokens;
  other[0] = 12;  // of n-grams up to token 2, which the pad of token 3 ends, and of taps up to 5
  const Tensor got = run(m, x, other);
  for (int64_t t = 0; t < 7; ++t) EXPECT_EQ(at::equal(got[t], want[t]), t == 6) << t;
}

TEST(Engram, Refusals) {
  const auto refused = [](const std::string& more) {
    return test::error_of([&] { engram(more, 8); });
  };
  EXPECT_EQ(refused(R"(, "width": 8)"), "");
  EXPECT_THAT(refused(R"(, "width": 6)"), HasSubstr("expected a multiple of 4"));
  EXPECT_THAT(refused(R"(, "width": 8, "pad": 13)"), HasSubstr("pad = 13"));
  EXPECT_THAT(refused(R"(, "width": 8, "table_rows": 20)"), HasSubstr("table_rows = 20"));
  EXPECT_THAT(refused(R"(, "width": 8, "index": 5000)"), HasSubstr("at most 4096"));
  EXPECT_THAT(refused(R"(, "width": 8, "rows": 99999999999)"), HasSubstr("found 99999999999"));
  EXPECT_THAT(test::error_of([] {
                MixerUnderTest(R"({"type": "engram", "ngram": 2, "heads": 1})", 8, false);
              }),
              HasSubstr("engram is causal"));
}

}  // namespace
}  // namespace tessera::nn::engram_test
