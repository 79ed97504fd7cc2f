#include "tessera/train/objective/denoising/noise_recipe.h"

#include <algorithm>
#include <set>

#include "tessera/text/tokenizer/vocabularies.h"
#include "tessera/train/objective/denoising/noise_source.h"
#include "tessera/train/objective/denoising/noise_testing.h"

namespace tessera::train::noise_recipe_test {
namespace {

TEST(NoiseRecipe, ResolvesToItself) {
  for (const Json& objective : {kSpans, kMiddle, kBart, kUl2, Json{{"type", "prefix_lm"}}}) {
    const Recipe recipe = read_recipe(noise_recipe("a.txt", objective), "");
    EXPECT_EQ(resolve(read_recipe(resolve(recipe), "")), resolve(recipe));
    EXPECT_EQ(resolve(recipe)["objective"]["type"], objective["type"]);
    if (objective == kMiddle) continue;
    EXPECT_NO_THROW(read_recipe(noise_pair_recipe("a.txt", objective), ""));
  }
  // what a decoder learns in any case
  const Recipe recipe = read_recipe(noise_recipe("a.txt", {{"type", "causal_lm"}}), "");
  EXPECT_FALSE(resolve(recipe).contains("objective"));
}

TEST(NoiseRecipe, RecipeSpecAndDataMustAgree) {
  const auto refuses = [](const Json& objective, const char* pointer, const Json& value,
                          const char* message) {
    Json json = noise_recipe("a.txt", objective);
    json[Json::json_pointer(pointer)] = value;
    expect_error(ErrorKind::spec, message, [&] { read_recipe(json, ""); });
  };
  refuses(kSpans, "/objective/type", "span_corupption",
          "objective.type] unknown value \"span_corupption\" (did you mean \"span_corruption\"?)");
  refuses(kSpans, "/objective/spans", 3, "spans");
  refuses(kSpans, "/objective/rate", 1, "objective.rate] found 1; expected less than 1");
  refuses(kSpans, "/objective/rate", 0, "objective.rate");
  refuses(kSpans, "/objective/mean_span", 0.5, "objective.mean_span");
  refuses(kSpans, "/objective/eos", nullptr, "objective.eos] missing");
  refuses(kSpans, "/objective/eos", 320, "a vocabulary of 320");
  refuses(kSpans, "/objective/eos", "</s>", "which the tokenizer does not have");
  refuses(kSpans, "/objective/eos", 1.5, "expected a token of the tokenizer, or an id");
  const Json short_spans = {{"type", "span_corruption"}, {"eos", 256}, {"mean_span", 1}};
  refuses(short_spans, "/objective/sentinels", Json::array({300}),
          "objective.sentinels] found 1; texts of");
  refuses(kSpans, "/spec/vocab", 257, "objective.sentinels] found 0");
  refuses(kSpans, "/train/length", 3, "train.length");
  refuses(kSpans, "/train/windows", "carried", "use \"isolated\"");
  refuses(kSpans, "/data", {{"type", "copying"}}, "expected text files");
  refuses(kSpans, "/spec/layers/0/mixer/pattern", "full", "reads no prefix");
  refuses({{"type", "prefix_lm"}}, "/spec/layers/0/mixer/pattern", "full", "reads no prefix");
  refuses(kBart, "/objective/mask", nullptr, "objective.mask] missing");
  refuses(kBart, "/objective/permute", 2, "objective.permute");
  refuses(kBart, "/objective/delete", 1, "objective.delete");
  refuses(kBart, "/objective/mean_span", 0, "objective.mean_span");
  refuses(kMiddle, "/objective/prefix", nullptr, "the tokenizer has no <|fim_prefix|>");
  refuses(kMiddle, "/objective/prefix", 258, "two of them are token 258");
  refuses(kMiddle, "/objective/cut", "letters", "objective.cut");
  refuses(kMiddle, "/objective/unit", "document", "objective.cut] \"characters\" with unit");
  Json whole = kMiddle;
  whole["unit"] = "document";
  whole["cut"] = "tokens";
  EXPECT_NO_THROW(read_recipe(noise_recipe("a.txt", whole), ""));
  refuses(whole, "/objective/loss", "middle", "objective.loss");
  refuses(kUl2, "/objective/of", Json::array(), "objective.of] it is empty");
  refuses(kUl2, "/objective/of", nullptr, "objective.of] found none");
  refuses(kUl2, "/objective/of/0/weight", -1, "objective.of[0].weight");
  refuses(kUl2, "/objective/of/1/rate", 2, "objective.of[1].rate");
  refuses(kUl2, "/objective/of/0/type", "mixture", "objective.of[0].type] unknown value");
  refuses({{"type", "mixture"}, {"of", {{{"type", "prefix_lm"}, {"weight", 0}}}}}, "/train/steps",
          1, "all weights are 0");
  Json json = noise_pair_recipe("a.txt", kMiddle);
  expect_error(ErrorKind::spec, "\"fim\" with arch \"encoder_decoder\"",
               [&] { read_recipe(json, ""); });
  json = noise_recipe("a.txt", kSpans);
  json["spec"]["arch"] = "encoder";
  json["spec"]["layers"][0]["mixer"]["pattern"] = "full";
  expect_error(ErrorKind::spec, "reads no prefix", [&] { read_recipe(json, ""); });
}

TEST(NoiseRecipe, AllThatIsMissingIsSaidAtOnceWithWhatToWrite) {
  const auto with = [](Json json, std::vector<std::pair<const char*, Json>> changes) {
    for (auto& [pointer, value] : changes) json[Json::json_pointer(pointer)] = value;
    return json;
  };
  Json json = with(noise_recipe("a.txt", {{"type", "span_corruption"}}),
                   {{"/spec/vocab", 256}, {"/spec/layers/0/mixer/pattern", "full"}});
  const std::string error = test::error_of(ErrorKind::spec, [&] { read_recipe(json, ""); });
  EXPECT_EQ(error,
            "[objective] \"span_corruption\" lacks 3 things: a reader of the prefix: write "
            "\"pattern\": \"prefix\" at the attention of a decoder, or arch \"encoder_decoder\"; a "
            "token \"eos\": write objective.eos = 256; ids beyond the tokenizer's 256: write "
            "spec.vocab = 258 (found 256)");
  // what it says to write is enough
  EXPECT_NO_THROW(read_recipe(with(json, {{"/spec/layers/0/mixer/pattern", {{"type", "prefix"}}},
                                          {"/objective/eos", 256},
                                          {"/spec/vocab", 258}}),
                              ""));
  json = with(noise_recipe("a.txt", {{"type", "denoising"}}), {{"/spec/vocab", 256}});
  expect_error(
      ErrorKind::spec,
      "lacks 3 things: a token \"eos\": write objective.eos = 256; a token \"mask\": write "
      "objective.mask = 257; ids beyond the tokenizer's 256: write spec.vocab = 258",
      [&] { read_recipe(json, ""); });
  json = with(noise_recipe("a.txt", {{"type", "fim"}}), {});
  expect_error(ErrorKind::spec,
               "lacks 4 things: a token \"prefix\": write objective.prefix = 256; ",
               [&] { read_recipe(json, ""); });
}

TEST(NoiseRecipe, TokensOfFillInTheMiddleAreFoundInEverySpellingOfTheTable) {
  for (const auto& [prefix, suffix, middle] : text::known_tokens().fill_in_middle) {
    const TemporaryFolder folder;
    Json tokenizer =
        json_of(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
    for (const std::string& token : {prefix, suffix, middle})
      tokenizer["added_tokens"].push_back({{"id", 2 + tokenizer["added_tokens"].size()},
                                           {"content", token},
                                           {"special", true},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false}});
    Json json = noise_recipe("a.txt", {{"type", "fim"}, {"eos", 256}, {"cut", "tokens"}});
    json["data"]["tokenizer"] = folder.write("tokenizer.json", tokenizer.dump());
    EXPECT_NO_THROW(read_recipe(json, "")) << prefix;
    json["objective"]["prefix"] = 3;  // the suffix
    expect_error(ErrorKind::spec, "two of them are token 3", [&] { read_recipe(json, ""); });
  }
}

/// Documents of some lines, one of a byte alone.
std::string lines() {
  std::string out;
  for (int i = 0; i < 60; ++i)
    out +=
        Json{{"text", i % 9 == 3 ? "x" : counting_text(static_cast<size_t>(10 + i % 40))}}.dump() +
        "\n";
  return out;
}

TEST(NoiseSource, SamplesAreFunctionsOfTheirNumbersAndOfTheSeedInTrainingAlone) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", lines());
  for (const Json& objective : {kSpans, kMiddle, kBart, kUl2, Json{{"type", "prefix_lm"}}}) {
    Json json = noise_recipe(file, objective);
    json["data"]["format"] = "jsonl";
    const auto open = [&](int64_t seed) {
      json["train"]["seed"] = seed;
      return open_source(read_recipe(json, ""), folder / "cache");
    };
    const auto one = open(1), other = open(2);
    std::vector<int64_t> begun;
    const PackedBatch all = one->train(200, 4, begun), last = one->train(203, 1, begun);
    EXPECT_EQ(std::vector<int64_t>(all.ids.end() - std::ssize(last.ids), all.ids.end()), last.ids);
    EXPECT_EQ(all.pieces.back().row, 3);
    EXPECT_EQ(last.first_sample, 203);
    EXPECT_NE(all.ids, other->train(200, 4, begun).ids);
    ASSERT_GT(one->valid_samples(), 1);
    const PackedBatch held = one->valid({0, 1}), again = other->valid({0, 1}),
                      alone = one->valid({1});
    EXPECT_EQ(held.ids, again.ids);
    EXPECT_EQ(held.targets, again.targets);
    EXPECT_EQ(std::vector<int64_t>(held.ids.end() - std::ssize(alone.ids), held.ids.end()),
              alone.ids);
    // no text goes on into another, none is longer than a stack reads, all are asked something
    for (int64_t sample = 0; sample < 100; ++sample) {
      const PackedBatch batch = one->train(sample, 1, begun);
      ASSERT_FALSE(batch.pieces.empty());
      for (const PackedDocument& piece : batch.pieces) {
        EXPECT_LE(piece.length, 32);
        EXPECT_GE(batch.targets[static_cast<size_t>(piece.begin + piece.length - 1)], 0);
      }
      EXPECT_EQ(batch.n_targets, std::ssize(batch.targets) -
                                     std::count(batch.targets.begin(), batch.targets.end(), -1));
    }
  }
}

TEST(NoiseSource, ADocumentIsToldAlikeInAllWindowsOfAnEpoch) {
  const TemporaryFolder folder;
  Json objective = kMiddle;
  for (const auto& [key, value] : {std::pair("unit", "document"), std::pair("cut", "tokens")})
    objective[key] = value;
  objective["rate"] = 1;
  Json json = noise_recipe(folder.write("a.txt", counting_text(200)), objective);
  json["data"]["valid_fraction"] = 0;
  const auto source = open_source(read_recipe(json, ""), folder / "cache");
  // windows of 32 tokens, 5 an epoch: names of the parts stand in few of them, each once
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    std::vector<int64_t> begun;
    const PackedBatch all = source->train(5 * epoch, 5, begun);
    EXPECT_EQ(all.pieces.size(), 5u);
    for (const int64_t id : {257, 258, 259})
      EXPECT_LE(std::count(all.ids.begin(), all.ids.end(), id), 1) << epoch;
  }
}

TEST(NoiseSource, AMixtureDrawsByItsWeights) {
  const TemporaryFolder folder;
  Json objective = kUl2;
  objective["of"][0]["weight"] = 2;
  objective["of"][2]["weight"] = 0;
  const auto source = open_source(
      read_recipe(noise_pair_recipe(folder.write("a.txt", counting_text(4000)), objective), ""),
      folder / "cache");
  std::vector<int64_t> begun;
  int64_t prefixes = 0;
  for (int64_t sample = 0; sample < 900; ++sample) {
    const int64_t mode = source->train(sample, 1, begun).sources.front().front();
    EXPECT_TRUE(mode == 263 || mode == 261) << mode;
    prefixes += mode == 263;
  }
  EXPECT_NEAR(static_cast<double>(prefixes), 600, 71);  // five standard errors
}

TEST(NoiseSource, SentinelsLieBehindTheTokenizerAndAreNoneOfTheTokensThatAreNamed) {
  const TemporaryFolder folder;
  const auto source = open_source(
      read_recipe(noise_pair_recipe(folder.write("a.txt", counting_text(4000)), kSpans), ""),
      folder / "cache");
  std::vector<int64_t> begun;
  std::set<int64_t> seen;
  const PackedBatch batch = source->train(0, 50, begun);
  for (const std::vector<int64_t>& given : batch.sources)
    for (const int64_t id : given)
      if (id > 256) seen.insert(id);
  EXPECT_EQ(*seen.rbegin(), 319);
  EXPECT_EQ(*seen.begin(), 320 - std::ssize(seen));
}

TEST(NoiseSource, DataWithoutTextIsRefused) {
  const TemporaryFolder folder;
  Json json =
      noise_recipe(folder.write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n"), kSpans);
  json["data"]["format"] = "jsonl";
  json["data"]["valid_fraction"] = 0;
  expect_error(ErrorKind::input, "no document of 2 has 2 tokens of text",
               [&] { open_source(read_recipe(json, ""), folder / "cache"); });
}

}  // namespace
}  // namespace tessera::train::noise_recipe_test
