// Maps of token mixing: what cannot see another token shows nothing of it.
#include "tessera/serve/mixing.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::serve::mixing_test {
namespace {

model::Model model_of(const std::string& mixer, const std::string& arch = "decoder") {
  const spec::Json json =
      spec::parse_json(R"({"tessera": 1, "arch": ")" + arch +
                           R"(", "vocab": 32, "d_model": 16, "norm": {"type": "rms_norm"},
          "layers": [{"repeat": 2, "mixer": )" +
                           mixer + R"(}], "ffn": {"type": "glu", "d_hidden": 32}})",
                       "test");
  model::ModelSpec spec = model::read_model_spec(json);
  model::Weights weights = model::Weights::initial(spec, 7);
  return {std::move(spec), std::move(weights)};
}

std::vector<std::vector<double>> map_of(const model::Model& model,
                                        const std::string& name,
                                        int64_t tokens = 256) {
  MixingMap map(model, {3, 9, 4, 1, 17, 22, 5}, name);
  while (!map.step(tokens)) {
  }
  return map.values();
}

TEST(MixingMap, AWindowReachesAsFarAsItIsWide) {
  const model::Model model =
      model_of(R"({"type": "attention", "n_heads": 2, "pattern": {"type": "window", "width": 3}})");
  for (const char* name : {"layers.0.mixer", "layers.1.mixer"}) {
    const auto m = map_of(model, name);
    for (int i = 0; i < 7; ++i)
      for (int j = 0; j < 7; ++j)
        if (j > i || i - j >= 3)
          EXPECT_EQ(m[i][j], 0) << name << " " << i << " " << j;
        else
          EXPECT_GT(m[i][j], 1e-4) << name << " " << i << " " << j;
  }
}

TEST(MixingMap, ARecurrenceReadsAllThatCameBefore) {
  const auto m =
      map_of(model_of(R"({"type": "mamba2", "n_heads": 2, "d_state": 8})"), "layers.1.mixer");
  for (int i = 0; i < 7; ++i)
    for (int j = 0; j < 7; ++j)
      if (j > i)
        EXPECT_EQ(m[i][j], 0) << i << " " << j;
      else
        EXPECT_GT(m[i][j], 0) << i << " " << j;
}

TEST(MixingMap, AnEncoderSeesBothSides) {
  const auto m =
      map_of(model_of(R"({"type": "attention", "n_heads": 2})", "encoder"), "layers.0.mixer");
  for (const auto& row : m)
    for (const double value : row) EXPECT_GT(value, 0);
}

TEST(MixingMap, IsWhatOneTokenLessChanges) {
  const model::Model model = model_of(R"({"type": "attention", "n_heads": 2})");
  const nn::Batch text = nn::Batch::of(std::vector<std::vector<int64_t>>{{3, 9, 4, 1, 17, 22, 5}});
  const at::NoGradGuard constants;
  Tensor with_TD, without_TD;
  model::ForwardOptions options;
  options.probe = [&](const std::string& name, const Tensor& y) {
    if (name == "layers.1.mixer.out") with_TD = y.clone();
  };
  model.hidden(text, options);
  options.probe = [&](const std::string& name, const Tensor& y) {
    if (name == "layers.1.mixer.out") without_TD = y.clone();
  };
  options.replace = [&](const std::string& name, const Tensor& x) {
    if (name != "layers.1.mixer.in") return x;
    Tensor changed = x.clone();
    changed[2] = x.mean(0);
    return changed;
  };
  model.hidden(text, options);
  const double expected = ((without_TD[5] - with_TD[5]).norm() / with_TD[5].norm()).item<double>();
  EXPECT_NEAR(map_of(model, "layers.1.mixer")[5][2], expected, 1e-5 * expected);
}

// softmax(q k / sqrt(d)) of the layer's own queries and keys, by hand
TEST(MixingMap, WeightsAreTheSoftmaxOfEachHead) {
  const model::Model model = model_of(R"({"type": "attention", "n_heads": 2})");
  const std::vector<int64_t> ids = {3, 9, 4, 1, 17, 22, 5};
  const at::NoGradGuard constants;
  Tensor x_TD;
  model::ForwardOptions options;
  options.probe = [&](const std::string& name, const Tensor& x) {
    if (name == "layers.0.mixer.in") x_TD = x.to(at::kDouble);
  };
  model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{ids}), options);
  const auto heads = [&](const char* name) {
    const Tensor w = model.weights().find(name)->dense_tensor().to(at::kDouble);
    return at::matmul(x_TD, w.t()).view({7, 2, 8}).transpose(0, 1);
  };
  Tensor scores = at::matmul(heads("layers.0.mixer.q.weight"),
                             heads("layers.0.mixer.k.weight").transpose(1, 2)) /
                  std::sqrt(8.0);
  const Tensor later = at::ones({7, 7}, at::kBool).triu(1);
  const Tensor want_HTT = at::softmax(scores.masked_fill(later, -INFINITY), -1);
  const auto got = MixingMap(model, ids, "layers.0.mixer").weights();
  ASSERT_EQ(got.size(), 2u);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 7; ++i)
      for (int64_t j = 0; j < 7; ++j)
        EXPECT_NEAR(got.at(h).at(i).at(j), want_HTT[h][i][j].item<double>(), 1e-5)
            << h << " " << i << " " << j;
  // a recurrence gives no such weights
  EXPECT_TRUE(MixingMap(model_of(R"({"type": "mamba2", "n_heads": 2, "d_state": 8})"), ids,
                        "layers.0.mixer")
                  .weights()
                  .empty());
}

TEST(MixingMap, StepsOfAnySizeGiveTheSame) {
  const model::Model model = model_of(R"({"type": "attention", "n_heads": 2})");
  EXPECT_EQ(map_of(model, "layers.1.mixer", 1), map_of(model, "layers.1.mixer", 1000));
}

TEST(MixingMap, RefusesABranchThatIsNotThere) {
  const model::Model model = model_of(R"({"type": "attention", "n_heads": 2})");
  test::expect_error(ErrorKind::input, "there is no branch",
                     [&] { MixingMap(model, {1}, "layers.2.mixer"); });
}

}  // namespace
}  // namespace tessera::serve::mixing_test
