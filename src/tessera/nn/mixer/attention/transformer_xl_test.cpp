// Transformer-XL against its definition, in values and gradients, whole and in calls.
#include "tessera/nn/mixer/attention/transformer_xl.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/attention/segment_testing.h"
#include "tessera/nn/position/position_testing.h"

namespace tessera::nn::transformer_xl_test {
namespace {

using ops::gen;

TEST(TransformerXl, GoldenLogits) {
  const Scheme scheme("xl",
                      {{"relative.weight", at::eye(2, at::kDouble)},
                       {"u", ops::tensor({0.1, -0.2}, {1, 2})},
                       {"w", ops::tensor({-0.3, 0.4}, {1, 2})}},
                      1, 2, true);
  const double tau = 1 / std::sqrt(2.0);
  const Tensor q = gen({1, 1, 4, 2}, 0.7, 0.1), k = gen({1, 1, 6, 2}, 0.5, 0.3);
  const ops::ScoreOptions how = scheme.options(6, tau, at::kDouble);
  const Tensor logits = at::matmul(q, k.transpose(2, 3)) * tau +
                        how.term.bias({q, k, 2, 0, how.scale}, how.term.inputs);
  ops::expect_near(logits[0][0][0].narrow(0, 0, 3),
                   ops::tensor({-0.1533090984, 0.8001993887, 1.0180082481}), 1e-10);
}

TEST(TransformerXl, Golden) {
  // tokens 2 .. 7 of a document are the golden ones: two of memory, then a segment of four
  constexpr int64_t kD = 8;
  MixerUnderTest m(R"({"type": "transformer_xl", "n_heads": 1, "head_dim": 2, "segment": 4,
      "mem_len": 2})",
                   kD);
  m.fill();
  const auto giving = [&](const Tensor& rows, int64_t first) {
    return at::constant_pad_nd(rows, {0, 0, first, kD - first - rows.size(0)}).t().contiguous();
  };
  m.values["q.weight"] = giving(gen({4, 2}, 0.7, 0.1), 4);
  m.values["k.weight"] = giving(gen({6, 2}, 0.5, 0.3), 2);
  m.values["v.weight"] = giving(gen({6, 2}, 0.9, 0.2), 2);
  m.values["o.weight"] = at::constant_pad_nd(at::eye(2, at::kDouble), {0, 0, 0, kD - 2});
  m.values["position.u"] = ops::tensor({0.1, -0.2}, {1, 2});
  m.values["position.w"] = ops::tensor({-0.3, 0.4}, {1, 2});
  // of the sinusoids, those of frequency 1
  m.values["position.relative.weight"] = at::zeros({2, kD}, at::kDouble);
  m.values["position.relative.weight"][0][0] = 1;
  m.values["position.relative.weight"][1][kD / 2] = 1;
  const Tensor x = at::eye(kD, at::kDouble), want = ops::tensor({0.2323259975, 0.1468980629});
  const auto last = [&](const std::vector<int64_t>& calls) {
    return
        [&m, &x, calls](at::ScalarType type) { return m.run(x, type, calls)[7].narrow(0, 0, 2); };
  };
  ops::expect_both(last({}), want, 1e-10);
  ops::expect_both(last({4, 4}), want, 1e-10);
  ops::expect_both(last({3, 2, 1, 1, 1}), want, 1e-10);
}

constexpr int64_t kT = 15, kD = 6, kHeads = 2, kE = 3, kSegment = 4;

struct Case {
  const char* fields;
  int64_t mem_len;
  bool zeros = false, same_length = false;
};
constexpr Case kCases[] = {
    {R"("mem_len": 5)", 5},
    {R"("mem_len": 0)", 0},
    {R"("mem_len": 9)", 9},
    {R"("mem_len": 5, "init_mem": "zeros")", 5, true},
    {R"("mem_len": 3, "same_length": true)", 3, false, true},
    {R"("mem_len": 5, "init_mem": "zeros", "same_length": true)", 5, true, true}};

MixerUnderTest mixer(const Case& c) {
  MixerUnderTest m(
      fmt::format(R"({{"type": "transformer_xl", "n_heads": 2, "segment": 4, {}}})", c.fields), kD);
  m.fill({.size = 1});
  return m;
}

/// Query after query; what lies before a segment is detached.
Tensor definition(MixerUnderTest& m, const Case& c, const Tensor& x) {
  const auto project = [&](const char* name, const Tensor& input) {
    return at::mv(m.values[name], input).reshape({kHeads, kE});
  };
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const int64_t segment = i / kSegment * kSegment;
    const Tensor q = project("q.weight", x[i]);
    std::vector<Tensor> heads;
    for (int64_t a = 0; a < kHeads; ++a) {
      std::vector<SeenKey> seen;
      for (int64_t j = segment - c.mem_len; j <= i; ++j) {
        if ((j < 0 && !c.zeros) || (c.same_length && j <= i - c.mem_len)) continue;
        const Tensor input = j < 0         ? at::zeros({kD}, at::kDouble)
                             : j < segment ? x[j].detach()
                                           : x[j];
        seen.push_back({project("k.weight", input)[a], project("v.weight", input)[a],
                        static_cast<double>(i - j)});
      }
      heads.push_back(xl_attend(m, a, q[a], seen));
    }
    rows.push_back(at::mv(m.values["o.weight"], at::cat(heads)));
  }
  return at::stack(rows);
}

TEST(TransformerXl, AgainstTheDefinition) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.fields);
    MixerUnderTest m = mixer(c);
    const Tensor want = definition(m, c, x);
    for (const std::vector<int64_t>& calls : {std::vector<int64_t>{},
                                              {15},
                                              {4, 4, 4, 3},
                                              {1, 6, 1, 1, 6},
                                              {3, 12},
                                              std::vector<int64_t>(15, 1)})
      ops::expect_both([&](at::ScalarType type) { return m.run(x, type, calls); }, want, 1e-12);
  }
}

TEST(TransformerXl, GradientsStopAtTheMemory) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.fields);
    MixerUnderTest m = mixer(c);
    for (auto& [name, value] : m.values) value.requires_grad_(true);
    const Tensor x = gen({kT, kD}, 1.3, 0.2).requires_grad_(true), r = gen({kT, kD}, 0.7, 0.4);
    std::vector<Tensor> leaves{x};
    for (auto& [name, value] : m.values) leaves.push_back(value);
    const auto gradients = [&](const Tensor& y) {
      for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
      (y * r).sum().backward();
      std::vector<Tensor> out;
      for (const Tensor& leaf : leaves) out.push_back(leaf.grad().clone());
      return out;
    };
    const auto want = gradients(definition(m, c, x));
    for (const std::vector<int64_t>& calls :
         {std::vector<int64_t>{}, {4, 4, 4, 3}, {1, 6, 1, 7}, {3, 12}}) {
      const auto got = gradients(m.run(x, at::kDouble, calls));
      for (size_t i = 0; i < want.size(); ++i) ops::expect_near(got[i], want[i], 1e-12);
    }
    // of the last segment's outputs alone, nothing reaches the inputs of the others
    x.mutable_grad() = Tensor();
    m.run(x, at::kDouble).narrow(0, 12, 3).sum().backward();
    EXPECT_EQ(x.grad().narrow(0, 0, 12).abs().max().item<double>(), 0);
    EXPECT_GT(x.grad().narrow(0, 12, 3).abs().max().item<double>(), 0);
  }
}

TEST(TransformerXl, EnoughMemoryIsOneLongPass) {
  MixerUnderTest m(R"({"type": "transformer_xl", "n_heads": 2, "segment": 4, "mem_len": 12})", kD),
      full(R"({"type": "attention", "n_heads": 2, "position": "xl"})", kD);
  m.fill({.size = 1});
  full.values = m.values;
  const Tensor x = gen({kT, kD}, 1.1, 0.3), want = full.run(x, at::kDouble);
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {7, 8}); }, want, 1e-13);
}

TEST(TransformerXl, MemoryIsProjectedByTheWeightsOfTheDay) {
  // what training keeps are inputs: after an update the memory follows the new weights
  const Case& c = kCases[0];
  MixerUnderTest before = mixer(c), after = mixer(c);
  for (auto& [name, value] : after.values) value = value * 1.25 + 0.1;
  const Tensor x = gen({8, kD}, 1.3, 0.2);
  RowState row(before.state(), 0, at::TensorOptions().dtype(at::kDouble));
  const auto call = [&](const MixerUnderTest& m, int64_t start) {
    Batch batch;
    batch.segments = {{0, 0, 4, start}};
    batch.number();
    Context context;
    context.batch = &batch;
    const StateRows rows{&row};
    return run_mixer(*build_mixer(m.part, m.builder(at::kDouble)), x.narrow(0, start, 4), context,
                     &rows);
  };
  call(before, 0);
  row.detach();
  ops::expect_near(call(after, 4), definition(after, c, x).narrow(0, 4, 4), 1e-12);
}

TEST(TransformerXl, RowsAlikeAttendTogether) {
  // three rows after 0, 6 and 6 tokens, then after 4, 10 and 10: the latter two are computed at
  // once
  const Case& c = kCases[0];
  MixerUnderTest m = mixer(c);
  const auto built = build_mixer(m.part, m.builder(at::kDouble));
  const Tensor x = gen({3, kT, kD}, 1.3, 0.2);
  std::vector<RowState> states;
  for (int64_t r = 0; r < 3; ++r)
    states.emplace_back(m.state(), 0, at::TensorOptions().dtype(at::kDouble));
  std::vector<int64_t> seen(3, 0);
  const auto call = [&](const std::vector<int64_t>& lengths) {
    Batch batch;
    StateRows rows;
    std::vector<Tensor> inputs, want;
    int64_t begin = 0;
    for (size_t r = 0; r < 3; ++r) {
      if (lengths[r] == 0) continue;
      const auto row = static_cast<int64_t>(r);
      batch.segments.push_back({row, begin, lengths[r], seen[r]});
      begin += lengths[r];
      rows.push_back(&states[r]);
      inputs.push_back(x[row].narrow(0, seen[r], lengths[r]));
      want.push_back(definition(m, c, x[row]).narrow(0, seen[r], lengths[r]));
      seen[r] += lengths[r];
    }
    batch.number();
    Context context;
    context.batch = &batch;
    ops::expect_near(run_mixer(*built, at::cat(inputs), context, &rows), at::cat(want),
                     1e-12);
  };
  call({0, 6, 6});
  call({4, 4, 4});
  call({5, 5, 5});
}

TEST(TransformerXl, Refusals) {
  const auto refused = [](const std::string& fields, const std::string& part, bool causal = true) {
    test::expect_error(ErrorKind::spec, part, [&] {
      MixerUnderTest(R"({"type": "transformer_xl", "n_heads": 2, "segment": 4, )" + fields + "}",
                     kD, causal);
    });
  };
  refused(R"("mem_len": 4)", "is for decoders", false);
  refused(R"("mem_len": 0, "same_length": true)", "give a longer mem_len");
  refused(R"("mem_len": 4, "init_mem": "zeros", "position": {"type": "tupe", "n_positions": 40})",
          "stands before position 0");
  refused(R"("mem_len": 4, "position": "rope")", "acts on");
  refused(R"("mem_len": 4, "dropout": 1)", "less than 1");
}

}  // namespace
}  // namespace tessera::nn::transformer_xl_test
