// Infini-attention against plain loops (tools/golden/infini_attention.py).
#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::infini_attention_test {
namespace {

spec::Json config(const char* update) {
  return {{"type", "infini_attention"},
          {"n_heads", 4},
          {"n_kv_heads", 2},
          {"head_dim", 2},
          {"segment", 3},
          {"update", update},
          {"position", {{"type", "rope"}, {"theta", 100}}}};
}

TEST(InfiniAttention, GoldenLinearUpdate) {
  golden_mixer(config("linear"), 8)
      .expect_everywhere(
          golden_input(8, 8),
          ops::tensor({3.0283559259,  3.2402632149,  3.3188581955,  3.2609072792,  3.0687947076,
                       2.7504244590,  2.3188950597,  1.7919606786,  -1.9184638355, -2.2530897661,
                       -2.4950181048, -2.6342953312, -2.6651912416, -2.5864347032, -2.4012659514,
                       -2.1173032790, 3.8682342910,  4.1098033533,  4.1822851113,  4.0826974895,
                       3.8151377646,  3.3906139945,  2.8265921194,  2.1462773707,  -6.1901173973,
                       -6.4307441617, -6.4067944730, -6.1192536797, -5.5799519093, -4.8110773480,
                       -3.8442633651, -2.7192870389, 10.0491287934, 10.1900265090, 9.9116817539,
                       9.2255463083,  8.1598494529,  6.7584365480,  5.0789651283,  3.1905327323,
                       -2.0705728851, -1.4126181635, -0.6965448954, 0.0481859235,  0.7909342563,
                       1.5011416304,  2.1495883874,  2.7095958508,  9.8468073797,  9.5644690663,
                       8.8886252366,  7.8470817494,  6.4826902366,  4.8515850828,  3.0208739207,
                       1.0658766594,  4.4243812270,  5.3925750972,  6.1389053144,  6.6326660383,
                       6.8535427522,  6.7924480508,  6.4518955188,  5.8458963155},
                      {8, 8}),
          1e-9);
}

TEST(InfiniAttention, GoldenDeltaRule) {
  golden_mixer(config("delta"), 8)
      .expect_everywhere(
          golden_input(8, 8),
          ops::tensor({3.0283559259,  3.2402632149,  3.3188581955,  3.2609072792,  3.0687947076,
                       2.7504244590,  2.3188950597,  1.7919606786,  -1.9184638355, -2.2530897661,
                       -2.4950181048, -2.6342953312, -2.6651912416, -2.5864347032, -2.4012659514,
                       -2.1173032790, 3.8682342910,  4.1098033533,  4.1822851113,  4.0826974895,
                       3.8151377646,  3.3906139945,  2.8265921194,  2.1462773707,  -6.1901173973,
                       -6.4307441617, -6.4067944730, -6.1192536797, -5.5799519093, -4.8110773480,
                       -3.8442633651, -2.7192870389, 10.0491287934, 10.1900265090, 9.9116817539,
                       9.2255463083,  8.1598494529,  6.7584365480,  5.0789651283,  3.1905327323,
                       -2.0705728851, -1.4126181635, -0.6965448954, 0.0481859235,  0.7909342563,
                       1.5011416304,  2.1495883874,  2.7095958508,  9.0588375605,  8.9157714519,
                       8.4058888243,  7.5501674892,  6.3838139031,  4.9548146889,  3.3219623493,
                       1.5524364004,  4.3005698005,  5.0633295223,  5.6177715546,  5.9410848039,
                       6.0199673768,  5.8511738526,  5.4416488072,  4.8082410969},
                      {8, 8}),
          1e-9);
}

/// The same bits by any cut of the document into calls, across the ends of segments.
TEST(InfiniAttention, CallsHaveTheBitsOfTheWholeDocument) {
  const at::NoGradGuard no_gradients;
  const MixerUnderTest mixer = golden_mixer(config("delta"), 8);
  const Tensor x = golden_input(23, 8).to(at::kFloat), whole = mixer.whole(x, {23});
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{23},
                                            {1, 22},
                                            {4, 5, 9, 5},
                                            {3, 3, 3, 14},
                                            {2, 2, 2, 2, 15},
                                            std::vector<int64_t>(23, 1)})
    EXPECT_TRUE(at::equal(mixer.split(x, calls), whole));
}

/// What a later segment reads of an earlier one it reads from the memory alone.
TEST(InfiniAttention, GradientsReachAllSegments) {
  const MixerUnderTest mixer = golden_mixer(config("linear"), 8);
  const Tensor x = golden_input(9, 8).requires_grad_(true);
  mixer.whole(x, {9})[8].sum().backward();
  for (int64_t t = 0; t < 9; ++t) EXPECT_GT(x.grad()[t].abs().max().item<double>(), 1e-6) << t;
}

TEST(InfiniAttention, RefusesInOneLine) {
  const auto refused = [](const char* json, const char* text, bool causal = true) {
    test::expect_error(ErrorKind::spec, text, [&] { MixerUnderTest(json, 8, causal); });
  };
  refused(R"({"type": "infini_attention", "n_heads": 2, "segment": 4})",
          "infini_attention is causal and cannot stand in an encoder", false);
  refused(R"({"type": "infini_attention", "n_heads": 3, "segment": 4})",
          "n_heads = 3 does not divide");
  refused(R"({"type": "infini_attention", "n_heads": 4, "n_kv_heads": 3, "segment": 4})",
          "n_kv_heads = 3 does not divide n_heads = 4");
}

}  // namespace
}  // namespace tessera::nn::infini_attention_test
