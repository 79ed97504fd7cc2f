// Attention whose sequences are spread over the ranks of a ring gives the same outputs and
// gradients as attention that is not.
#include "tessera/nn/sequence_split.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::sequence_split_test {
namespace {

using ops::gen;
using ops::RingLayout;

struct Result {
  Tensor out;
  std::map<std::string, Tensor> gradients;  // "x" and every parameter
};

/// Documents of these lengths, spread or not.
Result run(const char* json,
           bool causal,
           const std::vector<int64_t>& lengths,
           const SequenceSplit& split) {
  MixerUnderTest m(json, 8, causal);
  m.fill();
  for (auto& [name, value] : m.values) value = value.detach().requires_grad_(true);
  Batch batch;
  int64_t n = 0;
  for (const int64_t length : lengths) {
    batch.segments.push_back({static_cast<int64_t>(batch.segments.size()), n, length, 0});
    n += length;
  }
  batch.number();
  Context context;
  context.split = split;
  const Tensor x = gen({n, 8}, 1.3, 0.2).requires_grad_(true);
  Result result;
  result.out = m.forward(x, batch, at::kDouble, context);
  (result.out * gen({n, 8}, 0.77, 0.4)).sum().backward();
  result.gradients["x"] = x.grad();
  for (const auto& [name, value] : m.values)
    if (value.grad().defined()) result.gradients[name] = value.grad();
  return result;
}

TEST(SequenceSplit, ChangesNothing) {
  const std::pair<const char*, bool> mixers[] = {
      {R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"})", true},
      {R"({"type": "attention", "n_heads": 2, "position": "alibi"})", false},
      {R"({"type": "attention", "n_heads": 2, "softcap": 3, "sinks": true,
        "pattern": {"type": "window", "width": 4}, "position": {"type": "t5", "n_buckets": 6,
        "max_distance": 9}})",
       true},
      {R"({"type": "attention", "n_heads": 2, "pattern": {"type": "strided", "stride": 3},
        "position": {"type": "shaw", "left": 3, "terms": "query_and_key", "values": true}})",
       true},
      {R"({"type": "attention", "n_heads": 2, "position": {"type": "xl"}})", true},
      {R"({"type": "attention", "n_heads": 2, "position": {"type": "fire", "d_hidden": 5}})", true},
      {R"({"type": "attention", "n_heads": 2, "position": {"type": "tupe", "n_positions": 16,
        "untie_cls": true, "buckets": 8}})",
       false},
      {R"({"type": "attention", "n_heads": 2, "position": {"type": "decoupled",
        "n_positions": 16}})",
       true}};
  for (const auto& [json, causal] : mixers)
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{9, 9}, std::vector<int64_t>{5, 11, 1}}) {
      const Result want = run(json, causal, lengths, {});
      ASSERT_GT(want.gradients.size(), 4u);
      for (const auto& [ranks, layout] :
           {SequenceSplit{3, RingLayout::contiguous}, SequenceSplit{2, RingLayout::zigzag},
            SequenceSplit{8, RingLayout::striped}}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, layout {}", json, ranks, static_cast<int>(layout)));
        const Result got = run(json, causal, lengths, {ranks, layout});
        ops::expect_near(got.out, want.out, 1e-12);
        ASSERT_EQ(got.gradients.size(), want.gradients.size());
        for (const auto& [name, gradient] : want.gradients)
          ops::expect_near(got.gradients.at(name), gradient,
                           1e-11 * std::max(1.0, gradient.abs().max().item<double>()),
                           name.c_str());
      }
    }
}

TEST(SequenceSplit, RefusesWhatNoRankCanCompute) {
  const auto refused = [](const char* json, const char* reason) {
    test::expect_error(ErrorKind::spec, reason, [&] {
      run(json, true, {9}, {2, RingLayout::striped});
    });
  };
  refused(R"({"type": "attention", "n_heads": 2, "dropout": 0.1})", "set it to 0");
  refused(R"({"type": "attention", "n_heads": 2, "position": {"type": "cope", "n_positions": 4}})",
          "use another position");
  refused(R"({"type": "attention", "n_heads": 2, "position": "rope",
      "pattern": {"type": "sink_window", "first": 2, "width": 3}})",
          "use \"window\"");
}

}  // namespace
}  // namespace tessera::nn::sequence_split_test
