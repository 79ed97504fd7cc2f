#include "tessera/infer/evaluation/verify.h"

#include <set>

#include "tessera/infer/infer_testing.h"

namespace tessera::infer::verify_test {
namespace {

TEST(Verify, EveryFormOfEveryBranchAgrees) {
  for (const auto& [name, layers] : tiny_layers()) {
    const model::Model model = tiny_model(layers, 3);
    const Verification result = verify(model, random_tokens(70, 5), {.longest_chunk = 9});
    std::set<std::string> forms, places;
    for (const Difference& d : result.branches) {
      EXPECT_LE(d.error, 1e-5) << name << " " << d.place << " " << d.form << " " << d.token;
      forms.insert(d.form);
      places.insert(d.place);
    }
    EXPECT_EQ(forms.size(), 4u);
    EXPECT_EQ(result.branches.size(), 4 * places.size());
    EXPECT_GE(places.size(), 4u) << name;  // mixers and feed-forward layers
    EXPECT_EQ(result.logits.size(), 4u);
    for (const Difference& d : result.logits) EXPECT_LE(d.error, 1e-4) << name << " " << d.form;
  }
}

TEST(Verify, AnAnswerInEveryForm) {
  for (const char* mixer : {R"({"type": "attention", "n_heads": 2, "position": "rope"})",
                            R"({"type": "mamba2", "n_heads": 4, "d_state": 8})"}) {
    const Verification result = verify(tiny_pair(mixer, 3), random_tokens(40, 5));
    EXPECT_EQ(result.branches.size(), 4u * 6);  // two layers of mixer, cross and ffn
    EXPECT_LE(Verification::worst(result.branches)->error, 1e-5) << mixer;
    EXPECT_EQ(result.logits.size(), 4u);
    EXPECT_LE(Verification::worst(result.logits)->error, 1e-4) << mixer;
  }
}

// its branches see other rows than the call has; the layer as a whole is compared
TEST(Verify, LayersThatChooseTokens) {
  const model::Model model = tiny_model(
      R"({"mixer": {"type": "attention", "n_heads": 2, "position": "rope"}},
         {"depth": {"type": "mixture_of_depths", "capacity": 0.5},
          "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}},
         {"depth": {"type": "mixture_of_depths", "capacity": 0.5},
          "mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}})",
      3);
  const Verification result = verify(model, random_tokens(40, 5));
  std::set<std::string> places;
  for (const Difference& d : result.branches) places.insert(d.place);
  EXPECT_TRUE(places.contains("layers.1.depth") && places.contains("layers.2.depth"));
  EXPECT_FALSE(places.contains("layers.1.mixer"));
  EXPECT_LE(Verification::worst(result.branches)->error, 1e-5);
  EXPECT_LE(Verification::worst(result.logits)->error, 1e-4);
}

TEST(Verify, AnEncoderBesideOtherTexts) {
  for (const char* mixer : {R"({"type": "attention", "n_heads": 2, "position": "rope"})",
                            R"({"type": "attention", "n_heads": 2,
                                "pattern": {"type": "window", "width": 5}})",
                            R"({"type": "fourier"})"}) {
    const model::Model model =
        tiny_model_of(fmt::format(R"({{"tessera": 1, "arch": "encoder", "vocab": 23, "d_model": 16,
                         "layers": [{{"repeat": 2, "mixer": {},
                                      "ffn": {{"type": "glu", "d_hidden": 24}}}}],
                         "head": "linear"}})",
                                  mixer),
                      3);
    const Verification result = verify(model, random_tokens(40, 5));
    EXPECT_EQ(result.branches.size(), 2u * 4);  // two forms of two layers
    EXPECT_LE(Verification::worst(result.branches)->error, 1e-5) << mixer;
    EXPECT_EQ(result.logits.size(), 2u);
    EXPECT_LE(Verification::worst(result.logits)->error, 1e-4) << mixer;
  }
}

TEST(Verify, ADecoderWithoutAStateBesideOtherTexts) {
  const std::string lsh =
      R"({"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4})";
  for (const model::Model& model :
       {tiny_model(fmt::format(R"({{"repeat": 2, "mixer": {}}})", lsh), 3), tiny_pair(lsh, 3)}) {
    const Verification result = verify(model, random_tokens(40, 5));
    std::set<std::string> forms;
    for (const Difference& d : result.branches) forms.insert(d.form);
    EXPECT_EQ(forms, (std::set<std::string>{"as in training", "in a batch"}));
    EXPECT_LE(Verification::worst(result.branches)->error, 1e-5);
    EXPECT_EQ(result.logits.size(), 2u);
    EXPECT_LE(Verification::worst(result.logits)->error, 1e-4);
  }
}

TEST(Verify, BeyondWhereAllAnglesChange) {
  for (const char* scaling :
       {R"({"type": "longrope", "short_factor": [1, 1.2, 1.5, 2], "long_factor": [2, 3, 3, 4],
            "original_length": 30, "factor": 4})",
        R"({"type": "dynamic", "factor": 2, "original_length": 30})"}) {
    SCOPED_TRACE(scaling);
    const model::Model model =
        tiny_model(fmt::format(R"({{"mixer": {{"type": "attention", "n_heads": 2,
                        "position": {{"type": "rope", "scaling": {}}}}}}})",
                               scaling),
                   3);
    for (const int64_t tokens : {30, 31, 50}) {
      const Verification result = verify(model, random_tokens(tokens, 5), {.longest_chunk = 9});
      EXPECT_EQ(result.logits.size(), tokens > 30 ? 5u : 4u);
      EXPECT_EQ(result.logits.back().form, tokens > 30 ? "recomputed" : "rolled back");
      EXPECT_LE(Verification::worst(result.branches)->error, 1e-5);
      EXPECT_LE(Verification::worst(result.logits)->error, 1e-4);
    }
  }
}

TEST(Verify, TheLargestDifferenceAndItsPlace) {
  const Tensor want = at::tensor({1.0, -4.0, 2.0, 0.0, 3.0, 1.0}).reshape({3, 2});
  Tensor got = want.clone();
  EXPECT_EQ(largest_difference(got, want).error, 0);
  got[1][1] = 0.5;
  got[2][0] = 3.25;
  const Difference difference = largest_difference(got, want);
  EXPECT_DOUBLE_EQ(difference.error, 0.125);
  EXPECT_EQ(difference.token, 1);
  got[2][1] = std::nan("");
  EXPECT_TRUE(std::isinf(largest_difference(got, want).error));
  EXPECT_EQ(largest_difference(got, want).token, 2);
}

TEST(Verify, WhatIsReplacedReachesTheBranch) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  const at::NoGradGuard no_gradients;
  const auto batch = nn::Batch::of(std::vector<std::vector<int64_t>>{random_tokens(5, 1)});
  std::map<std::string, Tensor> seen;
  model::ForwardOptions forward;
  forward.probe = [&](const std::string& name, const Tensor& x) { seen[name] = x.clone(); };
  const Tensor plain = model.hidden(batch, forward);
  const Tensor in = seen.at("layers.1.mixer.in"), out = seen.at("layers.1.mixer.out");
  forward.replace = [&](const std::string& name, const Tensor& x) {
    return name == "layers.1.mixer.in" ? x * 2 : x;
  };
  const Tensor other = model.hidden(batch, forward);
  EXPECT_TRUE(at::equal(seen.at("layers.1.mixer.in"), in * 2));
  EXPECT_FALSE(at::equal(seen.at("layers.1.mixer.out"), out));
  EXPECT_FALSE(at::equal(other, plain));
}

TEST(Verify, RefusesASingleToken) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  EXPECT_THROW(verify(model, {1}), Error);
}

}  // namespace
}  // namespace tessera::infer::verify_test
