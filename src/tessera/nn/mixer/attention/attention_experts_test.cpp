// Attention experts against transformers 5.23's JetMoE (tools/golden/attention_experts.py).
#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::attention_experts_test {
namespace {

spec::Json config(const spec::Json& router, int64_t experts = 3) {
  return {{"type", "attention_experts"},
          {"n_heads", 2},
          {"n_experts", experts},
          {"router", router},
          {"bias", true},
          {"position", {{"type", "rope"}, {"theta", 100}}}};
}

TEST(AttentionExperts, AgainstTransformersJetMoe) {
  golden_mixer(config({{"type", "top_k"}, {"k", 2}, {"score", "softmax_of_chosen"}}), 4)
      .expect_everywhere(
          golden_input(5, 4),
          ops::tensor({2.1412606645,  -0.2915490845, 0.9806032997,  -1.2089821322, 2.1042126987,
                       -0.0554022753, 0.5860990155,  -0.7241824589, 0.5932518144,  1.6390052230,
                       -0.9994264373, 0.4789172282,  1.1907047886,  0.1107141439,  1.1960334211,
                       -2.0049383939, 2.2000061879,  -0.2007516216, 0.7559277367,  -0.8891907541},
                      {5, 4}),
          1e-9);
}

/// One expert is attention with the same weights.
TEST(AttentionExperts, OneExpertIsAttention) {
  const MixerUnderTest one = golden_mixer(config({{"type", "top_k"}, {"k", 1}}, 1), 4);
  MixerUnderTest same({{"type", "attention"},
                       {"n_heads", 2},
                       {"bias", {{"o", true}}},
                       {"position", {{"type", "rope"}, {"theta", 100}}}},
                      4);
  for (const char* name : {"q.weight", "o.weight"}) same.values[name] = one.values.at(name)[0];
  for (const char* name : {"k.weight", "v.weight"}) same.values[name] = one.values.at(name);
  same.values["o.bias"] = one.values.at("bias");
  same.expect_all_given();
  one.expect_everywhere(golden_input(7, 4), same.whole(golden_input(7, 4), {7}).detach(), 1e-12);
}

/// A token for which no expert has room keeps its key and value; nothing but the bias is added.
TEST(AttentionExperts, DroppedTokensAddNothing) {
  const MixerUnderTest mixer =
      golden_mixer(config({{"type", "switch"}, {"capacity", 1}, {"jitter", 0}}, 2), 4);
  Batch batch;
  batch.segments = {{.begin = 0, .length = 8}};
  batch.number();
  Context context;
  context.training = true;
  const Tensor y =
      mixer.forward(golden_input(8, 4), batch, at::kDouble, context) - mixer.values.at("bias");
  int64_t kept = 0;
  for (int64_t t = 0; t < 8; ++t) kept += y[t].abs().max().item<double>() > 0 ? 1 : 0;
  EXPECT_GT(kept, 0);
  EXPECT_LE(kept, 2);
}

TEST(AttentionExperts, KeepsKeysAndValuesAlone) {
  const auto state = golden_mixer(config({{"type", "top_k"}}), 4).state();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].shape, (std::vector<int64_t>{2, 2}));
}

TEST(AttentionExperts, RefusesInOneLine) {
  const auto refused = [](const spec::Json& more, const char* text) {
    spec::Json json = config({{"type", "top_k"}});
    json.update(more);
    test::expect_error(ErrorKind::spec, text, [&] { MixerUnderTest(json, 4); });
  };
  refused({{"router", nullptr}}, "found null; expected a router");
  refused({{"router", {{"type", "top_k"}, {"k", 4}}}}, "k = 4 of 3 experts");
  refused({{"pattern", {{"type", "block_sparse"}}}}, "\"block_sparse\" differs from head to head");
  refused({{"position", "alibi"}}, "position \"alibi\"");
}

}  // namespace
}  // namespace tessera::nn::attention_experts_test
