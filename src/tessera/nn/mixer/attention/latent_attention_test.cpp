// Latent attention against the published numbers, its absorbed form and plain attention.
#include "tessera/nn/mixer/attention/latent_attention.h"

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::latent_attention_test {
namespace {

using ops::gen;

/// Our k_b and v_b from DeepSeek's kv_b_proj, whose rows are, per head, [key; value].
void set_kv_b(MixerUnderTest& m, const Tensor& kv_b, int64_t heads, int64_t nope, int64_t value) {
  const int64_t c = kv_b.size(1);
  const Tensor apart = kv_b.reshape({heads, nope + value, c});
  m.values["k_b.weight"] = apart.narrow(1, 0, nope).transpose(1, 2).reshape({heads * c, nope});
  m.values["v_b.weight"] = apart.narrow(1, nope, value).reshape({heads * value, c});
}

MixerUnderTest golden_mixer(const std::string& layout) {
  MixerUnderTest m(
      R"({"type": "latent_attention", "n_heads": 2, "q_lora_rank": 3, "kv_lora_rank": 3,
      "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2,
      "position": {"type": "rope", "layout": ")" +
          layout + R"("}})",
      4);
  m.values = {{"q_a.weight", gen({3, 4}, 0.31, 0.1)},
              {"q_b.weight", gen({8, 3}, 0.23, 0.4)},
              {"kv_a.weight", gen({5, 4}, 0.29, 0.7)},
              {"o.weight", gen({4, 4}, 0.43, 0.6)},
              {"q_norm.weight", at::ones({3}, at::kDouble)},
              {"kv_norm.weight", at::ones({3}, at::kDouble)}};
  set_kv_b(m, gen({8, 3}, 0.19, 0.3), 2, 2, 2);
  return m;
}

TEST(LatentAttention, GoldenG3) {
  const MixerUnderTest m = golden_mixer("interleaved");
  const Tensor x = gen({3, 4}, 0.41, 0.2);
  const Tensor want = ops::tensor(
      {-0.02752487504, 2.46526873, -0.705402971, -2.255551438, -0.865102717, 2.979320707,
       -0.02065350184, -2.973180392, 3.273212872, 1.256598421, -3.646801342, -0.1723992743},
      {3, 4});
  // expanded in double, absorbed by the kernels in float32
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 2e-9);
  // absorbed, from the latent cache
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{3}, {1, 1, 1}, {2, 1}})
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type, calls); }, want, 2e-9);
}

TEST(LatentAttention, AbsorbedIsExpanded) {
  for (const char* extra : {R"("q_lora_rank": 5, "bias": true)", R"("latent_norm": null)"}) {
    MixerUnderTest m(R"({"type": "latent_attention", "n_heads": 3, "kv_lora_rank": 7,
        "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 6, "position": "rope", )" +
                         std::string(extra) + "}",
                     8);
    m.fill();
    const Tensor x = gen({11, 8}, 1.7, 0.4);
    const Tensor expanded = m.run(x, at::kDouble);
    ops::expect_near(m.run(x, at::kDouble, {11}), expanded, 1e-13);
    ops::expect_near(m.run(x, at::kDouble, {3, 1, 5, 2}), expanded, 1e-13);
  }
}

TEST(LatentAttention, HalfLayoutIsAPermutation) {
  // channels (0, 1), (2, 3) of the rotary part as pairs, or channels (0, 2), (1, 3)
  const std::string text = R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 3,
      "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "position": {"type": "rope", "layout": )";
  MixerUnderTest pairs(text + R"("interleaved"}})", 8), halves(text + R"("half"}})", 8);
  pairs.fill();
  halves.values = pairs.values;
  const Tensor order = at::tensor({0, 2, 1, 3}, at::kLong);
  const Tensor q_rows = at::cat({at::arange(2), order + 2, at::arange(6, 8), order + 8}),
               kv_rows = at::cat({at::arange(3), order + 3});
  halves.values["q.weight"] = pairs.values["q.weight"].index_select(0, q_rows);
  halves.values["kv_a.weight"] = pairs.values["kv_a.weight"].index_select(0, kv_rows);
  const Tensor x = gen({7, 8}, 1.1, 0.3);
  ops::expect_near(halves.run(x, at::kDouble), pairs.run(x, at::kDouble), 1e-13);
}

/// Fills attention with 2 heads of 3 channels, and gives its weights to a latent one whose latent is
/// the input.
void take_weights(MixerUnderTest& latent, MixerUnderTest& plain) {
  plain.fill();
  latent.values = {{"q.weight", plain.values["q.weight"]},
                   {"o.weight", plain.values["o.weight"]},
                   {"kv_a.weight", at::eye(6, at::kDouble)}};
  const Tensor k = plain.values["k.weight"].reshape({2, 3, 6}),
               v = plain.values["v.weight"].reshape({2, 3, 6});
  set_kv_b(latent, at::cat({k, v}, 1).reshape({12, 6}), 2, 3, 3);
}

TEST(LatentAttention, WithoutLatentIsPlainAttention) {
  // no rotary channels, latent = x: keys and values are read from kv_b_proj
  MixerUnderTest latent(R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 6,
      "qk_nope_head_dim": 3, "qk_rope_head_dim": 0, "latent_norm": null})",
                        6);
  MixerUnderTest plain(R"({"type": "attention", "n_heads": 2})", 6);
  take_weights(latent, plain);
  const Tensor x = gen({8, 6}, 0.9, 0.2);
  ops::expect_near(latent.run(x, at::kDouble), plain.run(x, at::kDouble), 1e-13);
  ops::expect_near(latent.run(x, at::kDouble, {5, 3}), plain.run(x, at::kDouble), 1e-13);
}

TEST(LatentAttention, QueriesGrowWithTheirPosition) {
  // as plain attention grows them, whose keys and values are read from the inputs themselves
  const std::string growth = R"(, "temperature": {"scale": 0.7, "floor": 3, "offset": 0})";
  MixerUnderTest latent(R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 6,
      "qk_nope_head_dim": 3, "qk_rope_head_dim": 0, "latent_norm": null)" +
                            growth + "}",
                        6);
  MixerUnderTest plain(R"({"type": "attention", "n_heads": 2)" + growth + "}", 6);
  take_weights(latent, plain);
  const Tensor x = gen({11, 6}, 0.9, 0.2), want = plain.run(x, at::kDouble);
  ops::expect_near(latent.run(x, at::kDouble), want, 1e-13);
  ops::expect_near(latent.run(x, at::kDouble, {5, 1, 5}), want, 1e-13);
  plain.json.erase("temperature");
  plain.read();
  EXPECT_GT((plain.run(x, at::kDouble) - want).abs().max().item<double>(), 1e-4);
}

TEST(LatentAttention, ScalesOfTheReleasedModels) {
  const auto scale = [](double mscale_all_dim) {
    const MixerUnderTest m(
        fmt::format(R"({{"type": "latent_attention", "n_heads": 1, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "scale": "yarn_mscale",
        "position": {{"type": "rope", "scaling": {{"type": "yarn", "factor": 40,
        "original_length": 4096, "mscale": {0}, "mscale_all_dim": {0}}}}}}})",
                    mscale_all_dim),
        2048);
    EXPECT_EQ(m.state()[0].shape, (std::vector<int64_t>{1, 576}));
    return m.part.as<LatentAttentionConfig>().score_scale();
  };
  EXPECT_NEAR(scale(1), 0.1352337789, 5e-11);
  EXPECT_NEAR(scale(0.707), 0.1147213868, 5e-11);
}

}  // namespace
}  // namespace tessera::nn::latent_attention_test
