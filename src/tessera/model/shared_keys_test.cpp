// Layers that use the keys and values of an earlier one: against the definition, and continued from
// a state that they do not have.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/model/model.h"
#include "tessera/model/model_testing.h"
#include "tessera/model/plan.h"
#include "tessera/model/state_testing.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::model::shared_keys_test {
namespace {

using ops::gen;
using testing::HasSubstr;

/// Full attention "a" and windowed "b", and two layers that read them.
Json tiny(const char* patch = "{}") {
  Json json = spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 8, "ffn": {"type": "glu", "d_hidden": 12},
    "layers": [
      {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope", "kv_name": "a"}},
      {"mixer": {"type": "attention", "n_heads": 2, "position": "rope", "kv_name": "b",
                 "pattern": {"type": "window", "width": 3}}},
      {"mixer": {"type": "attention", "n_heads": 2, "head_dim": 4, "position": "rope", "kv_of": "b",
                 "pattern": {"type": "window", "width": 3}}},
      {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope", "kv_of": "a"}}]})",
                               "test");
  json.merge_patch(spec::parse_json(patch, "test"));
  return json;
}

TEST(SharedKeys, AreThoseOfTheEarlierLayer) {
  nn::register_mechanisms();
  spec::Scope scope;
  scope.d_model = scope.width = 6;
  const auto part = [&](const char* json) {
    return spec::read_part(spec::Slot::mixer, spec::parse_json(json, "test"), scope);
  };
  nn::Values first, second;
  const auto built = [&](const char* json, nn::Values& values) {
    const spec::AnyPart config = part(json);
    spec::ParamList list;
    config.config->params(list, scope);
    nn::draw_weights(list.all(), values);
    return nn::build_mixer(config, nn::Builder(nn::weights_from(values), "", scope));
  };
  const auto source =
      built(R"({"type": "attention", "n_heads": 2, "head_dim": 3, "kv_name": "a"})", first);
  const auto reader =
      built(R"({"type": "attention", "n_heads": 2, "head_dim": 3, "kv_of": "a"})", second);
  EXPECT_FALSE(second.contains("k.weight"));

  constexpr int64_t kT = 5;
  const Tensor x = gen({kT, 6}, 0.7, 0.1), y = gen({kT, 6}, 0.4, 0.3);
  const nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>{{0, 1, 2, 3, 4}});
  nn::Context context;
  context.batch = &batch;
  source->forward(x, context, nullptr);
  const Tensor out = reader->forward(y, context, nullptr);

  const auto heads = [&](const Tensor& t, const Tensor& w) {
    return at::matmul(t, w.t()).view({kT, 2, 3}).transpose(0, 1);
  };
  const Tensor q = heads(y, second["q.weight"]), k = heads(x, first["k.weight"]),
               v = heads(x, first["v.weight"]);
  Tensor s = at::matmul(q, k.transpose(1, 2)) / std::sqrt(3.0);
  s = s.masked_fill(at::ones({kT, kT}, at::kBool).triu(1), -INFINITY);
  const Tensor expected = at::matmul(
      at::matmul(at::softmax(s, -1), v).transpose(0, 1).reshape({kT, 6}), second["o.weight"].t());
  EXPECT_TRUE(at::allclose(out, expected, 0, 1e-12));
}

Continued decoder() {
  const ModelSpec spec = read_model_spec(tiny());
  return Continued(Model(spec, Weights::initial(spec, 3)));
}

TEST(SharedKeys, AreReadFromTheOtherLayersState) {
  decoder().expect_any_cuts();
}

TEST(SharedKeys, FollowARollBackAndAFile) {
  decoder().expect_roll_back();
}

TEST(SharedKeys, CostNoStateAndNoParameters) {
  const ModelSpec spec = read_model_spec(tiny());
  EXPECT_EQ(state_layout(spec).size(), 2U);
  for (const spec::ParamDecl& decl : parameters(spec))
    EXPECT_FALSE(decl.name == "layers.2.mixer.k.weight" || decl.name == "layers.3.mixer.v.weight");
}

TEST(SharedKeys, AreRefusedWhereTheyDoNotFit) {
  const auto error = [](const char* layer) {
    Json json = tiny();
    json["layers"][3]["mixer"].merge_patch(spec::parse_json(layer, "test"));
    return error_of(json);
  };
  EXPECT_EQ(error("{}"), "");
  EXPECT_THAT(error(R"({"kv_of": "c"})"),
              testing::AllOf(HasSubstr("[layers[3].mixer.kv_of]"), HasSubstr("kv_name \"c\"")));
  EXPECT_THAT(error(R"({"n_kv_heads": 4})"), HasSubstr("those of \"a\" are 2 of 2"));
  EXPECT_THAT(error(R"({"position": "none"})"), HasSubstr("expected the same"));
  EXPECT_THAT(error(R"({"bias": {"k": true}})"), HasSubstr("bias of k or v"));
  EXPECT_THAT(error(R"({"kv_name": "z"})"), HasSubstr("kv_name together with kv_of"));
  Json deep = tiny();
  deep["layers"][3]["depth"] = "layer_drop";
  EXPECT_THAT(error_of(deep), HasSubstr("shares values with other layers"));
}

}  // namespace
}  // namespace tessera::model::shared_keys_test
