// What runs again in the backward pass: the same gradients, bit by bit, with less kept.
#include <gmock/gmock.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "tessera/base/testing.h"
#include "tessera/model/model.h"
#include "tessera/model/model_testing.h"
#include "tessera/ops/live_bytes_testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::model::recompute_test {
namespace {

using Of = nn::RecomputeOf;

Json stack_of(const char* patch) {
  Json json = spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 8,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": 12},
    "residual": {"type": "pre_norm", "dropout": 0.2},
    "layers": [{"repeat": 4}]})",
                               "test");
  json.merge_patch(spec::parse_json(patch, "test"));
  return json;
}

struct Ran {
  double loss = 0;
  std::vector<Tensor> gradients;
  std::map<std::string, double> losses;  // of parts
};

/// `elsewhere`: the backward pass runs on another thread.
Ran step(const Model& model,
         const nn::Recompute& recompute,
         ops::ProductType products = ops::ProductType::float32,
         bool elsewhere = false) {
  const ModelSpec& spec = model.spec();
  for (const auto& [decl, weight] : model.weights().all())
    weight->dense_tensor().mutable_grad() = Tensor();
  ForwardOptions options;
  options.training = true;
  options.key = RandomKey(9);
  options.products = products;
  options.recompute = recompute;
  Ran out;
  Tensor parts = at::zeros({});
  options.add_loss = [&](const std::string& name, const Tensor& loss) {
    out.losses[name] += loss.item<double>();
    parts = parts + loss;
  };
  const nn::Batch batch = nn::Batch::of({{3, 1, 4, 1, 5, 9, 2, 6}, {5, 3, 5, 8, 9}});
  std::optional<nn::Encoded> encoded;
  if (spec.encoder)
    options.encoded =
        &encoded.emplace(model.encode(nn::Batch::of({{2, 7, 1, 8}, {2, 8, 1, 8, 2, 8}}), options));
  const Tensor hidden = model.hidden(batch, options);
  const Tensor loss = (hidden * ops::gen(hidden.sizes().vec(), 0.3, 0.1)).sum() + parts;
  if (elsewhere)
    std::thread([&] { loss.backward(); }).join();
  else
    loss.backward();
  out.loss = loss.item<double>();
  for (const auto& [decl, weight] : model.weights().all())
    out.gradients.push_back(weight->dense_tensor().grad());
  return out;
}

Ran step(const ModelSpec& spec,
         const nn::Recompute& recompute,
         ops::ProductType products = ops::ProductType::float32,
         bool elsewhere = false) {
  return step(Model(spec, Weights::initial(spec, 5)), recompute, products, elsewhere);
}

TEST(Recompute, GivesTheSameGradients) {
  const std::map<std::string, const char*> kinds = {
      {"plain", "{}"},
      {"experts", R"({"ffn": {"type": "moe", "n_experts": 4, "d_hidden": null,
        "expert": {"type": "glu", "d_hidden": 6},
        "router": {"type": "noisy_top_k", "k": 2}}})"},
      {"random depth", R"({"depth": {"type": "layer_drop", "p": 0.4}})"},
      {"chosen tokens", R"({"depth": {"type": "mixture_of_depths", "capacity": 0.5}})"},
      {"streams", R"({"residual": {"type": "hyper_connections", "dropout": 0.2}})"},
      {"a recurrence", R"({"mixer": {"type": "delta_net", "n_heads": 2, "position": null}})"},
      {"reversible", R"({"residual": {"type": "reversible", "dropout": 0.2}})"},
      {"shared", R"({"layers": [{"repeat": 4, "share": "one"}]})"},
  };
  for (const auto& [name, patch] : kinds) {
    const ModelSpec spec = read_model_spec(stack_of(patch));
    const Ran plain = step(spec, {});
    for (const nn::Recompute& how :
         {nn::Recompute{Of::layers}, {Of::layers, 3}, {Of::mixers}, {Of::ffns, 2}}) {
      const Ran again = step(spec, how);
      EXPECT_EQ(again.loss, plain.loss) << name;
      EXPECT_EQ(again.losses, plain.losses) << name;
      for (size_t i = 0; i < plain.gradients.size(); ++i) {
        ASSERT_EQ(again.gradients[i].defined(), plain.gradients[i].defined()) << name;
        if (plain.gradients[i].defined()) {
          EXPECT_TRUE(at::equal(again.gradients[i], plain.gradients[i]))
              << name << ", " << parameters(spec)[i].name;
        }
      }
    }
  }
}

TEST(Recompute, ABackwardPassOnAnotherThreadHasTheProductsOfItsForwardPass) {
  for (const char* patch : {"{}", R"({"residual": {"type": "reversible", "dropout": 0.2}})"}) {
    const ModelSpec spec = read_model_spec(stack_of(patch));
    const Ran exact = step(spec, {Of::layers});
    const auto bf16 = ops::ProductType::bf16;
    const Ran here = step(spec, {Of::layers}, bf16);
    const Ran elsewhere = step(spec, {Of::layers}, bf16, /*elsewhere=*/true);
    EXPECT_NE(here.loss, exact.loss);
    EXPECT_EQ(elsewhere.loss, here.loss);
    for (size_t i = 0; i < here.gradients.size(); ++i) {
      ASSERT_TRUE(here.gradients[i].defined());
      EXPECT_TRUE(at::equal(elsewhere.gradients[i], here.gradients[i])) << parameters(spec)[i].name;
    }
  }
}

/// Every composition of the zoo that is small enough, an encoder with its decoder among them.
TEST(Recompute, GivesTheSameGradientsForEveryModelOfTheZoo) {
  int tried = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(TESSERA_SOURCE_DIR "/zoo")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("tiny") || entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().string());
    const ModelSpec spec = load_model_spec(entry.path());
    ++tried;
    const std::vector<spec::ParamDecl> declared = parameters(spec);
    const bool many = spec.encoder != nullptr ||
                      std::any_of(declared.begin(), declared.end(), [](const auto& decl) {
                        return decl.name.starts_with("shared.");
                      });
    const Model model(spec, Weights::initial(spec, 5, many ? at::kDouble : at::kFloat));
    const Ran plain = step(model, {}), again = step(model, {Of::layers});
    EXPECT_EQ(again.loss, plain.loss);
    EXPECT_EQ(again.losses, plain.losses);
    for (size_t i = 0; i < plain.gradients.size(); ++i) {
      const Tensor &a = again.gradients[i], &b = plain.gradients[i];
      // what no gradient reaches may be told so by zeros
      if (!a.defined() || !b.defined()) {
        for (const Tensor& one : {a, b})
          EXPECT_TRUE(!one.defined() || one.count_nonzero().item<int64_t>() == 0)
              << declared[i].name;
        continue;
      }
      // what several layers read, themselves or through what they all read, is summed over them in
      // another order
      const bool same = many ? at::allclose(a, b, 1e-9, 1e-11) : at::equal(a, b);
      EXPECT_TRUE(same) << declared[i].name;
    }
  }
  EXPECT_GT(tried, 80);
}

TEST(Recompute, KeepsWhatGoesIntoALayerAlone) {
  const ModelSpec spec = read_model_spec(stack_of(R"({"d_model": 16, "layers": [{"repeat": 24}],
      "ffn": {"type": "glu", "d_hidden": 44}})"));
  const Model model(spec, Weights::initial(spec, 5));
  const nn::Batch batch = nn::Batch::of(at::arange(256).remainder(13).view({2, 128}));
  const auto kept = [&](const nn::Recompute& recompute) {
    ForwardOptions options;
    options.training = true;
    options.recompute = recompute;
    ops::LiveBytes live;
    const Tensor hidden = model.hidden(batch, options);
    return static_cast<double>(live.now());
  };
  kept({});  // what is made once
  const double plain = kept({}), layers = kept({Of::layers}), ffns = kept({Of::ffns});
  EXPECT_LT(layers, 0.2 * plain) << layers << " of " << plain << " bytes";
  EXPECT_LT(ffns, 0.8 * plain) << ffns << " of " << plain << " bytes";
}

TEST(Recompute, LeavesCallsThatRunOnceAlone) {
  const ModelSpec spec = read_model_spec(stack_of("{}"));
  const Model model(spec, Weights::initial(spec, 5));
  State state(spec, 1);
  ForwardOptions options;
  options.state = &state;
  options.recompute = {Of::layers};
  const Tensor hidden =
      model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{{3, 1, 4}}), options);
  hidden.sum().backward();
  EXPECT_EQ(state.length(0), 3);
}

}  // namespace
}  // namespace tessera::model::recompute_test
