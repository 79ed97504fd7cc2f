// Embeddings of features against torch and transformers 5.23 in float64 (tools/golden/features.py).
#include "tessera/base/testing.h"
#include "tessera/nn/embed/feature_batch.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/nn/parts.h"

namespace tessera::nn::features_test {
namespace {

constexpr int64_t kD = 4;

struct EmbedUnderTest {
  spec::Scope scope;
  spec::AnyPart part;
  Values values;

  explicit EmbedUnderTest(const std::string& json, bool causal = false) {
    register_mechanisms();
    scope.d_model = scope.width = kD;
    scope.causal = causal;
    scope.path = "test";
    part = spec::read_part(spec::Slot::embed, spec::parse_json(json, "test"), scope);
    spec::ParamList list;
    part.config->params(list, scope);
    draw_weights(list.all(), values, {.frequency_step = 0.13, .phase = 0, .size = 1});
  }
  const FeatureEmbedConfig& config() const {
    return dynamic_cast<const FeatureEmbedConfig&>(*part.config);
  }
  Tensor run(const Batch& batch, at::ScalarType type) const {
    Context context;
    context.batch = &batch;
    context.causal = false;
    return build_embed(part, {weights_from(values, type), "", scope})->forward(context, nullptr);
  }
  /// Alone and behind another document, in double and by the kernels.
  void expect(const Tensor& features, const Tensor& want) const {
    const Batch one = feature_batch(config(), {features}),
                two = feature_batch(config(), {features.flip(0).contiguous(), features});
    ASSERT_EQ(one.n_tokens(), want.size(0));
    ops::expect_near(run(one, at::kDouble), want, 1e-9);
    ops::expect_near(run(two, at::kDouble).slice(0, want.size(0)), want, 1e-9);
    const at::NoGradGuard no_gradients;
    const Tensor of_kernels = run(one, at::kFloat);
    ops::expect_near(of_kernels, want, 5e-6);
    EXPECT_TRUE(at::equal(run(two, at::kFloat).slice(0, want.size(0)), of_kernels));
  }
};

TEST(Patches, AgainstTransformersViT) {
  const EmbedUnderTest embed(
      R"({"type": "patches", "patch": 2, "patch_width": 3, "class_token": "first",
          "position": {"type": "learned", "n_positions": 5}})");
  embed.expect(
      ops::gen({3, 4, 6}, 0.41, 0.2),
      ops::tensor({0.9540608157,  1.8351635916,  1.8489644715,  1.0109499261,  -3.3350008883,
                   -2.5714610343, -1.1242660780, 0.7528861609,  -3.9756427476, -2.9246714928,
                   -1.9060265292, -1.1030576234, 2.9526996616,  3.1777386129,  3.2462675301,
                   3.1596986436,  -2.1387956419, -0.2590761868, 1.2552913947,  2.0902699078},
                  {5, 4}));
}

TEST(Patches, GoldenOverlappingWithAClassTokenInTheMiddle) {
  const EmbedUnderTest embed(
      R"({"type": "patches", "channels": 1, "patch": 3, "stride": 2, "stride_width": 1,
          "class_token": "middle"})");
  embed.expect(
      ops::gen({1, 5, 5}, 0.41, 0.2),
      ops::tensor(
          {0.7877279995, -0.6908666968, 2.9658972816,  -1.6689839777, -0.0597867177, 0.0624669461,
           2.3334070343, -1.1797225038, -0.8644601856, 0.9122306344,  1.4686283421,  -0.3305354420,
           0.3894183423, 0.8572989892,  0.9960239899,  0.7523305764,  1.4996471943,  0.0923374485,
           0.7152893077, 1.9693733006,  2.0430666358,  -0.6668210509, 1.6633183877,  0.8660267092,
           2.2807618151, -1.2086639264, 2.4901318140,  -0.2164943172},
          {7, 4}));
}

TEST(Frames, AgainstTransformersWhisper) {
  const EmbedUnderTest embed(
      R"({"type": "frames", "channels": 3,
          "position": {"type": "sinusoidal", "layout": "halves", "frequency": "t2t"}})");
  embed.expect(ops::gen({3, 7}, 0.41, 0.2),
               ops::tensor({-0.1634334005, 0.9386357777, 3.3995379955, 1.9009529355, 0.7406597071,
                            0.1150174139, 1.6218738226, 2.1170606316, 2.5359651418, 1.4465214376,
                            -0.3944792521, 0.8301415969, 1.0456623135, 2.2932464759, 0.0000744444,
                            0.8353013303},
                           {4, 4}));
}

TEST(Features, SaysHowManyTokensTheyMake) {
  for (const char* json :
       {R"({"type": "patches", "patch": 3, "stride": 2, "class_token": "last"})",
        R"({"type": "patches", "patch": 2})",
        R"({"type": "frames", "channels": 3, "kernel": 5, "strides": [1, 2, 3]})"}) {
    const EmbedUnderTest embed(json);
    for (int64_t n = 2; n < 20; ++n) {
      const auto shape = embed.config().shape_of(n);
      EXPECT_EQ(embed.config().tokens(shape), n) << json;
      const Batch batch = feature_batch(embed.config(), {at::zeros(shape)});
      EXPECT_EQ(embed.run(batch, at::kFloat).size(0), n) << json;
    }
  }
}

TEST(Features, RefusedInOneLine) {
  const auto refused = [](const char* text, ErrorKind kind, const auto& action) {
    test::expect_error(kind, text, action);
  };
  refused("[test] \"patches\" needs an encoder: its document is read whole", ErrorKind::spec,
          [] { EmbedUnderTest(R"({"type": "patches"})", /*causal=*/true); });
  refused("kernel = 2; expected an odd number", ErrorKind::spec,
          [] { EmbedUnderTest(R"({"type": "frames", "kernel": 2})"); });
  refused("strides = []", ErrorKind::spec,
          [] { EmbedUnderTest(R"({"type": "frames", "strides": []})"); });
  const EmbedUnderTest embed(R"({"type": "patches", "patch": 4})");
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{3, 3, 9}, {3, 9, 3}, {2, 9, 9}, {9, 9}, {3, 9, 9, 1}, {3, 0, 9}})
    refused("expected floats [3, height, width], no smaller than 4 x 4", ErrorKind::input,
            [&] { feature_batch(embed.config(), {at::zeros(shape)}); });
  const EmbedUnderTest sized(R"({"type": "patches", "patch": 4, "height": 8, "width": 12})");
  EXPECT_EQ(sized.config().tokens({3, 8, 12}), 6);
  EXPECT_EQ(sized.config().shape_of(20), (std::vector<int64_t>{3, 8, 12}));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 12, 8}, {3, 8, 8}, {3, 16, 12}})
    refused("expected floats [3, 8, 12]", ErrorKind::input,
            [&] { feature_batch(sized.config(), {at::zeros(shape)}); });
  refused("images of 8 x 3 pixels hold no patch of 4 x 4", ErrorKind::spec,
          [] { EmbedUnderTest(R"({"type": "patches", "patch": 4, "height": 8, "width": 3})"); });
  refused("pixel_values of document 1 is long int", ErrorKind::input, [&] {
    feature_batch(embed.config(), {at::zeros({3, 4, 4}), at::zeros({3, 4, 4}, at::kLong)});
  });
  refused(
      "this model reads pixel_values [3, height, width], no smaller than 4 x 4 and is given "
      "token ids; `tessera forward` takes them",
      ErrorKind::input, [&] {
        embed.run(Batch::of({{1, 2}}), at::kFloat);
      });
}

}  // namespace
}  // namespace tessera::nn::features_test
