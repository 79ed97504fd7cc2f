// Linformer against the published numbers, full attention and its refusals.
#include "tessera/nn/mixer/attention/linformer.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::linformer_test {
namespace {

using ops::gen;

/// One head of two channels whose projections give q, k and v of golden G5 on unit vectors.
MixerUnderTest golden_mixer(const std::string& extra) {
  MixerUnderTest m(
      R"({"type": "linformer", "n_heads": 1, "head_dim": 2, "n_slots": 2, )" + extra + "}", 4,
      false);
  m.values = {{"q.weight", weight_giving(gen({4, 2}, 0.37, 0.11), 4)},
              {"k.weight", weight_giving(gen({4, 2}, 0.53, 0.29), 4)},
              {"v.weight", weight_giving(gen({4, 2}, 0.71, 0.05), 4)},
              {"o.weight", at::eye(4, at::kDouble).narrow(1, 0, 2)}};
  return m;
}

void expect_golden(const MixerUnderTest& m, const std::vector<double>& want) {
  const Tensor x = at::eye(4, at::kDouble);
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type).narrow(1, 0, 2); },
                   ops::tensor(want, {4, 2}), 1e-9);
}

TEST(Linformer, GoldenG5Linear) {
  const std::vector<double> want = {0.5675296019, 0.6582487795, 0.5443854081, 0.477487215,
                                    0.5357035959, 0.4096802324, 0.5432918031, 0.468945904};
  for (const char* order : {"project_then_compress", "compress_then_project"}) {
    MixerUnderTest m = golden_mixer(fmt::format(R"("max_length": 4, "order": "{}")", order));
    m.values["compress_k.weight"] = gen({2, 4}, 0.61, 0.3);
    m.values["compress_v.weight"] = gen({2, 4}, 0.47, 0.8);
    expect_golden(m, want);
  }
}

TEST(Linformer, GoldenG5Mean) {
  expect_golden(golden_mixer(R"("method": "mean")"),
                {0.1783801928, 0.1721451108, 0.2895184176, 0.3602551026, 0.3011239822, 0.3798984132,
                 0.2131822114, 0.2310502035});
  // the same as a filter of equal taps
  MixerUnderTest filter = golden_mixer(R"("method": "conv", "max_length": 4, "share": "kv")");
  filter.values["compress_k.weight"] = at::full({2, 2}, 0.5, at::kDouble);
  expect_golden(filter, {0.1783801928, 0.1721451108, 0.2895184176, 0.3602551026, 0.3011239822,
                         0.3798984132, 0.2131822114, 0.2310502035});
}

TEST(Linformer, OneSlotPerTokenIsFullAttention) {
  MixerUnderTest full(R"({"type": "attention", "n_heads": 2})", 6, false);
  full.fill();
  const Tensor x = gen({7, 6}, 0.9, 0.2), want = full.run(x, at::kDouble);
  for (const char* method : {"linear", "mean", "max"}) {
    MixerUnderTest m(
        fmt::format(
            R"({{"type": "linformer", "n_heads": 2, "n_slots": 7, "max_length": 7, "method": "{}"}})",
            method),
        6, false);
    m.values = full.values;
    m.values["compress_k.weight"] = m.values["compress_v.weight"] = at::eye(7, at::kDouble);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
  }
}

TEST(Linformer, LayersThatShareReadOneMatrixForKeysAndValues) {
  for (const char* method : {"linear", "conv"}) {
    const auto of = [&](const char* share) {
      MixerUnderTest m(fmt::format(R"({{"type": "linformer", "n_heads": 2, "n_slots": 3,
          "max_length": 7, "method": "{}", "share": "{}"}})",
                                   method, share),
                       6, false);
      m.fill();
      return m;
    };
    MixerUnderTest own = of("kv"), shared = of("layerwise");
    const Tensor matrix = own.values.at("compress_k.weight");
    ASSERT_EQ(shared.values.count("shared.linformer.compress_k.weight"), 1u);
    EXPECT_EQ(shared.values.size(), own.values.size());
    for (auto& [name, value] : shared.values)
      value = name == "shared.linformer.compress_k.weight" ? matrix : own.values.at(name);
    const Tensor x = gen({7, 6}, 0.9, 0.2);
    ops::expect_near(shared.run(x, at::kDouble), own.run(x, at::kDouble), 0);
  }
}

TEST(Linformer, FiltersOfHeadsAreAGroupedConvolution) {
  for (const char* share : {"headwise", "kv"})
    for (const int64_t t : {7, 6, 2}) {
      MixerUnderTest m(fmt::format(R"({{"type": "linformer", "n_heads": 2, "n_slots": 3,
          "max_length": 7, "method": "conv_heads", "share": "{}"}})",
                                   share),
                       6, false);
      m.fill();
      const Tensor x = gen({t, 6}, 0.9, 0.2);
      const auto projected = [&](const char* name) { return at::matmul(x, m.values[name].t()); };
      const auto compressed = [&](const Tensor& y_TC, const std::string& of) {
        const Tensor& w = m.values.at(m.values.contains(of) ? of : "compress_k.weight");
        const Tensor padded = at::constant_pad_nd(y_TC.t(), {0, (3 - t % 3) % 3});
        return at::conv1d(padded.unsqueeze(0), w, {}, at::IntArrayRef{3}, at::IntArrayRef{0},
                          at::IntArrayRef{1}, 2)
            .squeeze(0)
            .t();
      };
      const Tensor q = projected("q.weight"),
                   k = compressed(projected("k.weight"), "compress_k.weight"),
                   v = compressed(projected("v.weight"), "compress_v.weight");
      std::vector<Tensor> heads;
      for (int64_t h = 0; h < 2; ++h) {
        const auto head = [&](const Tensor& y) { return y.narrow(1, 3 * h, 3); };
        heads.push_back(at::matmul(
            at::softmax(at::matmul(head(q), head(k).t()) / std::sqrt(3.0), -1), head(v)));
      }
      const Tensor want = at::matmul(at::cat(heads, 1), m.values["o.weight"].t());
      ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    }
}

TEST(Linformer, TheLastRunIsShorter) {
  // 5 tokens in 2 slots: runs of 3 and 2
  MixerUnderTest m(R"({"type": "linformer", "n_heads": 1, "n_slots": 2, "method": "mean"})", 3,
                   false);
  m.fill();
  const Tensor x = gen({5, 3}, 1.1, 0.3);
  const Tensor pooled = at::stack({x.narrow(0, 0, 3).mean(0), x.narrow(0, 3, 2).mean(0)});
  const auto projected = [&](const Tensor& t, const char* name) {
    return at::matmul(t, m.values[name].t());
  };
  const Tensor weights = at::softmax(
      at::matmul(projected(x, "q.weight"), projected(pooled, "k.weight").t()) / std::sqrt(3.0), -1);
  const Tensor want = projected(at::matmul(weights, projected(pooled, "v.weight")), "o.weight");
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
}

TEST(Linformer, RefusesDecodersAndLongDocuments) {
  EXPECT_NE(test::error_of([] {
              MixerUnderTest(
                  R"({"type": "linformer", "n_heads": 1, "n_slots": 2, "method": "mean"})", 4,
                  true);
            }).find("would read its future; use multi_level_attention"),
            std::string::npos);
  MixerUnderTest m(R"({"type": "linformer", "n_heads": 1, "n_slots": 2, "max_length": 4})", 4,
                   false);
  m.fill();
  EXPECT_NE(test::error_of([&] {
              m.run(gen({5, 4}, 1, 0), at::kDouble);
            }).find("a document of 5 tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::nn::linformer_test
