// The likelihood of a text, by windows apart and by windows that go on.
#include "tessera/infer/evaluation/evaluate.h"

#include "tessera/base/testing.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::evaluate_test {
namespace {

model::Model tiny() {
  const model::ModelSpec spec = model::read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 8, "head": "linear",
          "layers": [{"repeat": 2}],
          "mixer": {"type": "transformer_xl", "n_heads": 2, "segment": 4, "mem_len": 6},
          "ffn": {"type": "mlp", "d_hidden": 12}})",
      "test"));
  // large enough that the past shows in the likelihood
  return {spec, model::large_weights(spec, 3, 20)};
}

TEST(Evaluate, CarriedWindowsAreOnePass) {
  const model::Model model = tiny();
  const at::NoGradGuard no_gradients;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 41; ++i) ids.push_back((i * i + 3 * i) % 13);
  const Tensor hidden = model.hidden(nn::Batch::of({ids}));
  const Tensor targets = at::tensor(std::vector<int64_t>(ids.begin() + 1, ids.end()), at::kLong);
  const double want = nll_sum(model.logits(hidden.narrow(0, 0, 40)), targets) / 40;
  for (const int64_t window : {2, 4, 7, 10, 40, 100}) {
    const EvalResult result = evaluate(model, ids, {.window = window, .carry = true});
    EXPECT_NEAR(result.nll, want, 1e-6) << window;
    EXPECT_EQ(result.targets, 40) << window;
    EXPECT_EQ(result.windows, (40 + window - 1) / window) << window;
  }
  EXPECT_GT(std::abs(evaluate(model, ids, {.window = 7}).nll - want), 1e-3);
  EXPECT_THROW(evaluate(model, ids, {.window = 7, .stride = 3, .carry = true}), Error);
}

TEST(Evaluate, CarriedWindowsThatWouldEndMidwayAreRefused) {
  const std::vector<int64_t> ids(40, 1);
  const auto refused = [&](const char* layer, const char* part) {
    int64_t begun = 0;
    EvalOptions options{.window = 8, .carry = true};
    options.progress = [&](int64_t, int64_t) { ++begun; };
    const model::Model model = tiny_model(layer, 3);
    test::expect_error(ErrorKind::usage, part, [&] { evaluate(model, ids, options); });
    EXPECT_EQ(begun, 0);
    options.max_tokens = 17;
    if (!model.spec().no_state_reason().empty()) return;
    EXPECT_EQ(evaluate(model, ids, options).targets, 16);
  };
  refused(
      R"({"mixer": {"type": "gmlp", "d_hidden": 12, "max_length": 16}})",
      "carry continues through 39 tokens, and the positions of this model end after 16; expected "
      "a max-tokens of at most 17");
  refused(R"({"mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope",
              "scaling": {"type": "dynamic", "factor": 2, "original_length": 16}}}})",
          "all angles of this model change after 16");
  refused(R"({"mixer": {"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4}})",
          "carry needs a state, but lsh_attention");
  const char* longrope = R"({"mixer": {"type": "attention", "n_heads": 2, "position": {
      "type": "rope", "scaling": {"type": "longrope", "short_factor": [1, 1.2, 1.5, 2],
      "long_factor": [2, 3, 3, 4], "original_length": 16, "factor": 4}}}})";
  refused(longrope, "all angles of this model change after 16");
  // a first window beyond the change has the angles of all later ones
  EXPECT_EQ(evaluate(tiny_model(longrope, 3), ids, {.window = 17, .carry = true}).targets, 39);
}

TEST(Evaluate, LossesThatAreNotFiniteAreAnError) {
  const model::Model model = tiny();
  const at::NoGradGuard no_gradients;
  model.weights().all().begin()->second->dense_tensor().fill_(std::nan(""));
  test::expect_error(ErrorKind::input, "logits that are not finite", [&] {
    evaluate(model, {1, 2, 3, 4}, {});
  });
}

TEST(Evaluate, RefusesATypeThatNothingIsKeptIn) {
  const auto refused = [](ErrorKind kind, const char* layer, const char* part) {
    const model::Model model = tiny_model(layer, 3);
    for (const bool carry : {false, true})
      test::expect_error(kind, part, [&] {
        evaluate(model, {1, 2, 3, 4}, {.carry = carry, .kv = {.type = spec::KvType::int8}});
      });
  };
  refused(ErrorKind::spec, R"({"mixer": {"type": "short_conv"}})", "no layer of this model keeps");
  refused(ErrorKind::usage,
          R"({"mixer": {"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4}})",
          "int8 for a model that keeps no keys and values: lsh_attention");
}

// whether rows have a memory or are read as a whole
TEST(Evaluate, WindowsApartHaveTheBitsOfPassesWithoutAState) {
  auto models = tiny_memories();
  models.emplace_back("stateless", R"({"mixer": {"type": "lsh_attention", "n_heads": 2,
                                                 "n_buckets": [4], "chunk": 4}})");
  const std::vector<int64_t> ids = random_tokens(50, 4);
  for (const auto& [name, layers] : models) {
    const model::Model model = tiny_model(layers, 7);
    const at::NoGradGuard no_gradients;
    double want = 0;
    for (int64_t begin = 0; begin + 1 < 50; begin += 11) {
      std::vector<int64_t> inputs(ids.begin() + begin,
                                  ids.begin() + std::min<int64_t>(50, begin + 12));
      std::vector<int64_t> targets(inputs.begin() + 1, inputs.end());
      targets.push_back(-1);
      want +=
          score(model, model.hidden(nn::Batch::of({inputs})), at::tensor(targets, at::kLong)).nats;
    }
    EXPECT_EQ(evaluate(model, ids, {.window = 12}).nll, want / 49) << name;
  }
}

TEST(Evaluate, WindowsApartCountEveryTargetOnce) {
  const model::Model model = tiny();
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 20; ++i) ids.push_back(i % 13);
  for (const int64_t window : {2, 5, 19, 20, 64})
    for (const int64_t stride : {0, 1, 3})
      EXPECT_EQ(evaluate(model, ids, {.window = window, .stride = stride}).targets, 19);
}

}  // namespace
}  // namespace tessera::infer::evaluate_test
