// What a state keeps besides its tokens: keys of distances and filters, computed once.
#include <gtest/gtest.h>

#include "tessera/model/large_weights_testing.h"

namespace tessera::model::lasting_test {
namespace {

Model make_model(const std::string& mixer) {
  const ModelSpec spec = read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 17, "d_model": 8, "layers": [{"repeat": 2}],
          "mixer": )" +
          mixer + R"(, "ffn": {"type": "mlp", "d_hidden": 12}})",
      "test"));
  return {spec, large_weights(spec, 5)};
}

std::vector<int64_t> some_ids(int64_t n) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back((i * i + 3 * i) % 17);
  return ids;
}

Tensor step(const Model& model, State& state, int64_t id) {
  ForwardOptions options;
  options.state = &state;
  return model.hidden(nn::Batch::of({{id}}, {state.length(0)}), options);
}

/// Rows that are held for each layer.
std::vector<Tensor> held(State& state) {
  std::vector<Tensor> out;
  for (const auto& [name, value] : state.lasting()) out.push_back(std::any_cast<Tensor>(value));
  return out;
}

TEST(LastingValues, KeysOfDistancesAreProjectedOnce) {
  const at::NoGradGuard no_gradients;
  constexpr int64_t kTokens = 270;  // more than one block of distances
  const std::vector<int64_t> ids = some_ids(kTokens);
  const Model model =
      make_model(R"({"type": "attention", "n_heads": 2, "position": {"type": "xl"}})");
  const Tensor whole = model.hidden(nn::Batch::of({ids}));
  State state(model.spec(), 1);
  std::vector<Tensor> before;
  int projections = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const Tensor h = step(model, state, ids[static_cast<size_t>(t)]);
    ASSERT_TRUE(at::equal(h, whole.narrow(0, t, 1))) << t;
    const std::vector<Tensor> now = held(state);
    ASSERT_EQ(now.size(), 2u);
    for (const Tensor& rows : now) EXPECT_GT(rows.size(0), t);
    if (before.empty() || !now[0].is_same(before[0])) ++projections;
    before = now;
  }
  EXPECT_EQ(projections, 2);
  // a copy goes on with what there is, and leaves it as it is
  State fork = state.fork();
  EXPECT_TRUE(held(fork)[0].is_same(before[0]));
  EXPECT_TRUE(at::equal(step(model, fork, 3), step(model, state, 3)));
  // that they are read
  State other = state.fork();
  const Tensor want = step(model, state, 5);
  for (const Tensor& rows : held(other)) rows.zero_();
  EXPECT_FALSE(at::equal(step(model, other, 5), want));
}

TEST(LastingValues, ReachIsTheirBound) {
  const at::NoGradGuard no_gradients;
  const Model model =
      make_model(R"({"type": "transformer_xl", "n_heads": 2, "segment": 3, "mem_len": 4})");
  const std::vector<int64_t> ids = some_ids(300);
  const Tensor whole = model.hidden(nn::Batch::of({ids}));
  State state(model.spec(), 1);
  for (int64_t t = 0; t < 300; ++t)
    ASSERT_TRUE(at::equal(step(model, state, ids[static_cast<size_t>(t)]), whole.narrow(0, t, 1)));
  for (const Tensor& rows : held(state)) EXPECT_EQ(rows.size(0), 256);
}

TEST(LastingValues, FiltersAreMadeOnceByBlocks) {
  const at::NoGradGuard no_gradients;
  const Model model = make_model(R"({"type": "hyena", "max_length": 280, "order": 3})");
  const std::vector<int64_t> ids = some_ids(270);
  const Tensor whole = model.hidden(nn::Batch::of({ids}));
  State state(model.spec(), 1);
  std::vector<Tensor> before;
  int times = 0;
  for (int64_t t = 0; t < 270; ++t) {
    const Tensor h = step(model, state, ids[static_cast<size_t>(t)]);
    ASSERT_TRUE(at::equal(h, whole.narrow(0, t, 1))) << t;
    const std::vector<Tensor> now = held(state);
    ASSERT_EQ(now.size(), 2u);
    EXPECT_EQ(now[0].size(0), t < 256 ? 256 : 280);
    if (before.empty() || !now[0].is_same(before[0])) ++times;
    before = now;
  }
  EXPECT_EQ(times, 2);
}

// uses of shared parameters differ by their adapters
TEST(LastingValues, EveryUseKeepsItsOwn) {
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> ids = some_ids(9);
  for (const auto& [mixer, product] :
       {std::pair{R"({"type": "hyena", "max_length": 280})", "filter.hidden.0"},
        std::pair{R"({"type": "attention", "n_heads": 2, "position": {"type": "xl"}})", "q"}}) {
    const std::string layer = fmt::format(
        R"({{"branches": [{{"name": "b", "share": "s", "mixer": {},
             "adapters": [{{"rank": 2, "of": ["{}"]}}]}}]}})",
        mixer, product);
    const ModelSpec spec = read_model_spec(spec::parse_json(
        fmt::format(
            R"({{"tessera": 1, "arch": "decoder", "vocab": 17, "d_model": 8, "layers": [{}, {}]}})",
            layer, layer),
        "test"));
    Weights weights = Weights::initial(spec, 5);
    for (const auto& [decl, weight] : weights.all())
      if (decl.name.find("adapters") != std::string::npos)
        Tensor(weight->dense_tensor())
            .copy_(ops::initial_values(
                {decl.name, decl.shape, spec::Init::normal(1), spec::ParamKind::matrix},
                RandomKey(3), at::kFloat));
    const Model model(spec, std::move(weights));
    const Tensor whole = model.hidden(nn::Batch::of({ids}));
    State state(model.spec(), 1);
    for (int64_t t = 0; t < 9; ++t)
      ASSERT_TRUE(at::equal(step(model, state, ids[static_cast<size_t>(t)]), whole.narrow(0, t, 1)))
          << mixer << t;
    EXPECT_EQ(held(state).size(), 2u);
  }
}

TEST(LastingValues, TrainingKeepsNone) {
  for (const char* mixer : {R"({"type": "attention", "n_heads": 2, "position": {"type": "xl"}})",
                            R"({"type": "hyena", "max_length": 8})"}) {
    const Model model = make_model(mixer);
    State state(model.spec(), 1);
    step(model, state, 3);
    EXPECT_TRUE(state.lasting().empty());
  }
}

}  // namespace
}  // namespace tessera::model::lasting_test
