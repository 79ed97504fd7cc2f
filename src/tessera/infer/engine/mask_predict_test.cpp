// Texts of models that predict all tokens at once, against a reference in numpy.
#include "tessera/infer/engine/mask_predict.h"

#include <filesystem>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/spec/json.h"

namespace tessera::infer::mask_predict_test {
namespace {

using spec::Json;
using test::expect_error;
using Ids = std::vector<int64_t>;

const Json& golden() {
  static const Json json = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                                "tests/golden/mask_predict.json");
  return json;
}

model::Model golden_model(at::ScalarType type) {
  nn::register_mechanisms();
  auto spec = model::read_model_spec(golden()["spec"]);
  std::map<std::string, model::WeightPtr> weights;
  for (const auto& [name, how] : golden()["weights"].items()) {
    const Tensor drawn =
        how["shift"].get<double>() +
        how["scale"].get<double>() * ops::gen(how["shape"].get<std::vector<int64_t>>(),
                                              how["a"].get<double>(), how["b"].get<double>());
    weights[name] = std::make_shared<const ops::Weight>(ops::Weight::dense(name, drawn.to(type)));
  }
  auto own = model::Weights::check(spec, std::move(weights));
  return model::Model(std::move(spec), std::move(own));
}

/// A pair of random weights that says many different things.
model::Model tiny_masked(uint64_t seed) {
  return tiny_model_of(
      R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 23, "d_model": 16,
          "mask": 22, "head": "linear", "cross": {"type": "cross_attention", "n_heads": 2},
          "ffn": {"type": "mlp", "d_hidden": 24},
          "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
          "stacks": {"encoder": {"layers": [{"repeat": 2}],
                                 "heads": [{"type": "classifier", "n_labels": 12},
                                           {"type": "pooler", "of": "mean"}]},
                     "decoder": {"layers": [{"repeat": 2}]}}})",
      seed);
}

GenerateOptions how(int64_t iterations, int64_t lengths, int64_t least = 0, int64_t most = 128) {
  GenerateOptions options;
  options.mask_predict = MaskPredictOptions{iterations, lengths};
  options.min_new_tokens = least;
  options.max_new_tokens = most;
  return options;
}

TEST(MaskPredict, LossesOfTheReference) {
  const at::NoGradGuard no_gradients;
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const model::Model model = golden_model(type);
    const double tolerance = type == at::kDouble ? 1e-9 : 2e-5;
    std::vector<Ids> sources, texts;
    Ids asked;
    for (const Json& pair : golden()["pairs"]) {
      sources.push_back(pair["source"].get<Ids>());
      texts.push_back(pair["text"].get<Ids>());
      for (const int64_t id : pair["asked"].get<Ids>()) asked.push_back(id);
    }
    // of all pairs in one call
    const nn::Encoded encoded = model.encode(nn::Batch::of(sources));
    model::ForwardOptions options;
    options.encoded = &encoded;
    const Tensor hidden = model.hidden(nn::Batch::of(texts), options);
    std::vector<Tensor> rows;
    for (const Json& row : golden()["log_p"])
      rows.push_back(at::tensor(row.get<std::vector<double>>(), at::kDouble));
    ops::expect_near(at::log_softmax(model.logits(hidden).to(at::kDouble), -1), at::stack(rows),
                     tolerance);
    const Score sum = score(model, hidden, at::tensor(asked, at::kLong));
    EXPECT_NEAR(sum.nats / static_cast<double>(sum.targets), golden()["nll"].get<double>(),
                tolerance);
    EXPECT_EQ(sum.hits, golden()["hits"].get<int64_t>());
    const Tensor lengths = at::log_softmax(model.target_lengths(encoded).to(at::kDouble), -1);
    double nats = 0;
    for (size_t i = 0; i < texts.size(); ++i)
      nats -= lengths[static_cast<int64_t>(i)][size_of(texts[i]) - 1].item<double>();
    EXPECT_NEAR(nats / static_cast<double>(texts.size()), golden()["length_nll"].get<double>(),
                tolerance);
  }
}

TEST(MaskPredict, DecodesAsTheReference) {
  const model::Model model = golden_model(at::kFloat);
  size_t cases = 0;
  for (const Json& one : golden()["decoded"]) {
    const Ids source = one["source"].get<Ids>();
    const auto iterations = one["iterations"].get<int64_t>();
    const Generations best =
        generate(model, nullptr, {source}, how(iterations, one["candidates"].get<int64_t>()));
    EXPECT_EQ(best.rows[0].token_ids, one["best"].get<Ids>()) << one;
    EXPECT_EQ(best.rows[0].finish_reason, "stop");
    EXPECT_EQ(best.rows[0].prompt_tokens, size_of(source));
    // and every candidate alone
    for (const Json& text : one["texts"]) {
      const Ids tokens = text["tokens"].get<Ids>();
      const int64_t n = size_of(tokens);
      EXPECT_EQ(generate(model, nullptr, {source}, how(iterations, 1, n, n)).rows[0].token_ids,
                tokens)
          << one;
      ++cases;
    }
  }
  EXPECT_EQ(cases, 64u);
}

TEST(MaskPredict, ATextIsTheSameAloneAndAmongOthers) {
  const model::Model model = tiny_masked(5);
  std::vector<Ids> sources;
  for (const int64_t n : {1, 7, 3, 12, 5}) sources.push_back(random_tokens(n, 40 + n));
  GenerateOptions options = how(4, 3);
  const Generations all = generate(model, nullptr, sources, options);
  std::set<Ids> different;
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(all.rows[i].token_ids,
              generate(model, nullptr, {sources[i]}, options).rows[0].token_ids);
    different.insert(all.rows[i].token_ids);
    for (const int64_t id : all.rows[i].token_ids) EXPECT_NE(id, 22) << "the mask is said";
  }
  EXPECT_GT(different.size(), 3u);
  int64_t said = 0;
  for (const Generation& row : all.rows) said += size_of(row.token_ids);
  EXPECT_EQ(all.decode_tokens, said);
  // whatever a call may hold
  options.prefill_chunk = 5;
  const Generations cut = generate(model, nullptr, sources, options);
  for (size_t i = 0; i < sources.size(); ++i)
    EXPECT_EQ(cut.rows[i].token_ids, all.rows[i].token_ids);
}

TEST(MaskPredict, MoreIterationsOfALongTextChangeIt) {
  const model::Model model = tiny_masked(5);
  const Ids source = random_tokens(9, 3);
  std::set<Ids> texts;
  for (const int64_t iterations : {1, 2, 4, 12})
    texts.insert(generate(model, nullptr, {source}, how(iterations, 1, 12)).rows[0].token_ids);
  EXPECT_GT(texts.size(), 1u);
}

TEST(MaskPredict, TheSchedule) {
  // N (T - t) / T, cut
  EXPECT_EQ(masked_again(10, 1, 4), 7);
  EXPECT_EQ(masked_again(10, 2, 4), 5);
  EXPECT_EQ(masked_again(10, 3, 4), 2);
  EXPECT_EQ(masked_again(10, 4, 4), 0);
  EXPECT_EQ(masked_again(3, 9, 10), 0);
  MaskedText text(3, 0);
  EXPECT_EQ(text.read(), (Ids{0, 0, 0}));
  // the mask has the highest logit, and is not said
  text.fill(std::vector<float>{9, 1, 2, 9, 3, 3, 9, 0, 4});
  EXPECT_EQ(text.tokens(), (Ids{2, 1, 2}));
  EXPECT_NEAR(text.mean_log_p(),
              (-std::log1p(std::exp(-1.0)) - std::log(2.0) - std::log1p(std::exp(-4.0))) / 3, 1e-7);
  text.mask(1);
  EXPECT_EQ(text.read(), (Ids{2, 0, 2}));
  // what is not masked stays, however likely other tokens have become
  text.fill(std::vector<float>{0, 9, 0, 0, 0, 5, 0, 9, 0});
  EXPECT_EQ(text.tokens(), (Ids{2, 2, 2}));
  EXPECT_EQ(likely_lengths(std::vector<float>{1, 3, 3, 0, 7}, 3, 0, 4), (Ids{2, 3, 1}));
  EXPECT_EQ(likely_lengths(std::vector<float>{1, 3, 3, 0, 7}, 9, 4, 9), (Ids{5, 4}));
}

TEST(MaskPredict, RefusesWhatNeedsLeftToRight) {
  const model::Model model = tiny_masked(5);
  const Ids source = random_tokens(4, 3);
  const auto refused = [&](const std::string& what,
                           const std::function<void(GenerateOptions&)>& set) {
    GenerateOptions options = how(2, 2);
    set(options);
    expect_error(ErrorKind::usage, what, [&] { generate(model, nullptr, {source}, options); });
  };
  refused("--temperature for a model that predicts all tokens",
          [](auto& o) { o.sampling.temperature = 1; });
  refused("--repetition-penalty", [](auto& o) { o.sampling.repetition_penalty = 1.2; });
  refused("logprobs", [](auto& o) { o.logprobs = 2; });
  refused("ids that it is forced", [](auto& o) { o.forced_begin = {3}; });
  refused("a text that ends it", [](auto& o) { o.stop_strings = {"x"}; });
  refused("speculative decoding of a non-autoregressive model",
          [](auto& o) { o.speculation.lookup = 2; });
  refused("1 to 12 tokens", [](auto& o) { o.min_new_tokens = 13; });
  refused("length candidates; expected", [](auto& o) { o.mask_predict->lengths = 0; });
  Session session;
  refused("a session", [&](auto& o) { o.session = &session; });
  refused("another choice", [&](auto& o) { o.choices = 2; });
  expect_error(ErrorKind::usage, "a search with beams",
               [&] { beam_search(model, nullptr, {source}, {}, {.beams = 3}); });
  expect_error(ErrorKind::usage, "sees targets whole",
               [&] { PrefixCache(model, {.budget_bytes = 1 << 20}); });
  GenerateOptions left_to_right = how(2, 2);
  expect_error(ErrorKind::usage, "writes from left to right", [&] {
    generate(tiny_pair(R"({"type": "attention", "n_heads": 2})", 3), nullptr, {source},
             left_to_right);
  });
}

TEST(MaskPredict, SpecsSayHowLongTargetsMayBe) {
  nn::register_mechanisms();
  const Json good = golden()["spec"];
  const auto refused = [&](const std::string& what, const std::function<void(Json&)>& change) {
    Json json = good;
    change(json);
    expect_error(ErrorKind::spec, what, [&] { model::read_model_spec(json); });
  };
  const model::ModelSpec spec = model::read_model_spec(good);
  EXPECT_FALSE(spec.causal());
  EXPECT_EQ(spec.longest_target(), 6);
  EXPECT_EQ(model::resolve(model::read_model_spec(model::resolve(spec))), model::resolve(spec));
  refused("must be told how long they are",
          [](Json& json) { json["stacks"]["encoder"].erase("heads"); });
  refused("unused: heads of an encoder", [](Json& json) { json.erase("mask"); });
  refused("has no start token", [](Json& json) { json["start"] = 1; });
  refused("found 9; expected 0 to 8", [](Json& json) { json["mask"] = 9; });
  refused("needs a pooler", [](Json& json) {
    json["stacks"]["encoder"]["heads"] = {{{"type", "classifier"}, {"n_labels", 6}}};
  });
  refused("prefix in an encoder", [](Json& json) { json["mixer"]["pattern"] = "prefix"; });
}

}  // namespace
}  // namespace tessera::infer::mask_predict_test
