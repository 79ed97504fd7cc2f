// Attention of recorded steps: the definition over the keys up to the query's place, whatever lies
// after them.
#include "tessera/ops/attention/recorded_attention.h"

#include "tessera/base/testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::recorded_attention_test {
namespace {

constexpr int64_t kKeys = 12, kHeads = 4, kDim = 6;

/// Rows at several places, their keys in one memory [R, S, G, D] or apart.
void expect_definition(const ScoreOptions& options, int64_t groups, bool in_one_memory) {
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> places{0, 7, kKeys - 1};
  const auto n = static_cast<int64_t>(places.size());
  const Tensor q = gen({n, 1, kHeads, kDim}, 0.7, 0.1), k = gen({n, kKeys, groups, kDim}, 0.5, 0.3),
               v = gen({n, kKeys, groups, 5}, 0.9, 0.2), place = at::tensor(places, at::kLong);
  std::vector<AttentionCall> calls;
  std::vector<Tensor> want;
  for (int64_t r = 0; r < n; ++r) {
    const auto own = [&](const Tensor& x) { return in_one_memory ? x[r] : x[r].clone(); };
    calls.push_back({q[r], {{own(k), own(v), 0, place.narrow(0, r, 1)}}, kKeys, options});
    const int64_t at = places[static_cast<size_t>(r)];
    const auto seen = [&](const Tensor& x) {
      return x[r].narrow(0, 0, at + 1).transpose(0, 1).unsqueeze(0);
    };
    want.push_back(
        attention_plain(q[r].transpose(0, 1).unsqueeze(0), seen(k), seen(v), at, 0, options)
            .squeeze(0)
            .transpose(0, 1));
  }
  ASSERT_TRUE(is_recorded(calls));
  expect_near(attention(calls), at::cat(want), 1e-14);
  expect_near(attention(calls[1].q_THD, calls[1].kv, kKeys, options), want[1], 1e-14);
}

TEST(RecordedAttention, IsTheDefinitionUpToThePlace) {
  for (const int64_t groups : {1, 2, 4})
    for (const bool in_one_memory : {true, false}) {
      ScoreOptions options;
      options.scale = 0.4;
      expect_definition(options, groups, in_one_memory);
      options.window = 3;
      expect_definition(options, groups, in_one_memory);
      options.term.bias_HR = gen({kHeads, 9}, 1.1, 0.7);
      options.term.zero = 8;
      expect_definition(options, groups, in_one_memory);
      options.sinks_H = gen({kHeads}, 0.8, 0.6);
      expect_definition(options, groups, in_one_memory);
      options.window = 0;
      options.softcap = 1.5;
      expect_definition(options, groups, in_one_memory);
      options.sinks_H = Tensor();
      options.term.bias_HR = gen({1, 20}, 1.1, 0.7);
      options.term.zero = 15;
      expect_definition(options, groups, in_one_memory);
    }
}

TEST(RecordedAttention, RefusesWhatItDoesNotServe) {
  const Tensor x = gen({kKeys, 1, kDim}, 0.7, 0.1);
  ScoreOptions options;
  options.causal = false;
  const std::vector<AttentionCall> calls{
      {x.narrow(0, 0, 1), {{x, x, 0, at::zeros({1}, at::kLong)}}, kKeys, options}};
  test::expect_error(ErrorKind::internal, "a recorded step does not serve",
                     [&] { attention(calls); });
}

}  // namespace
}  // namespace tessera::ops::recorded_attention_test
