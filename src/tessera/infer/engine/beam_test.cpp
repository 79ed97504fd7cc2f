// Beam search against exhaustive search, against greedy text, and against transformers.
#include "tessera/infer/engine/beam.h"

#include <cmath>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/large_weights_testing.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

namespace tessera::infer::beam_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

constexpr int64_t kVocab = 5;

/// Tiny models of every kind of feeding: with a state, beside an encoder, by whole
/// documents, and anew for every token beyond a length.
const std::pair<const char*, const char*> kModels[] = {
    {"decoder", R"({"tessera": 1, "arch": "decoder", "vocab": 5, "d_model": 8, "head": "linear",
        "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
        "ffn": {"type": "mlp", "d_hidden": 12}, "layers": [{"repeat": 2}]})"},
    {"recurrent", R"({"tessera": 1, "arch": "decoder", "vocab": 5, "d_model": 8, "head": "linear",
        "mixer": {"type": "mamba2", "n_heads": 2, "d_state": 4}, "layers": [{"repeat": 2}]})"},
    {"stateless", R"({"tessera": 1, "arch": "decoder", "vocab": 5, "d_model": 8, "head": "linear",
        "mixer": {"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4},
        "ffn": {"type": "mlp", "d_hidden": 12}, "layers": [{"repeat": 2}]})"},
    {"anew", R"({"tessera": 1, "arch": "decoder", "vocab": 5, "d_model": 8, "head": "linear",
        "mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope",
          "scaling": {"type": "dynamic", "factor": 2, "original_length": 4}}},
        "ffn": {"type": "mlp", "d_hidden": 12}, "layers": [{"repeat": 2}]})"},
    {"pair", R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 5, "d_model": 8, "start": 1,
        "head": "linear", "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
        "cross": {"type": "cross_attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 12},
        "stacks": {"encoder": {"layers": [{"repeat": 2}]}, "decoder": {"layers": [{"repeat": 2}]}}})"},
};

model::Model make_model(const char* text) {
  const model::ModelSpec spec = model::read_model_spec(spec::parse_json(text, "test"));
  model::Weights weights = model::large_weights(spec, 3);
  const at::NoGradGuard no_gradients;
  if (const auto head = weights.find("head.weight")) Tensor(head->dense_tensor()).mul_(25.0 / 15);
  return {spec, std::move(weights)};
}

/// log p of every token after `made`, by one pass over the whole document.
std::vector<double> next_log_p(const model::Model& model, const Ids& prompt, const Ids& made) {
  const at::NoGradGuard no_gradients;
  model::ForwardOptions options;
  nn::Encoded encoded;
  Ids tokens = prompt;
  if (model.spec().encoder) {
    encoded = model.encode(nn::Batch::of(std::vector<Ids>{prompt}));
    options.encoded = &encoded;
    tokens = {model.spec().start};
  }
  tokens.insert(tokens.end(), made.begin(), made.end());
  const Tensor hidden = model.hidden(nn::Batch::of(std::vector<Ids>{tokens}), options);
  const Tensor logits = model.logits(hidden).select(0, -1).to(at::kDouble);
  const Tensor log_p = at::log_softmax(logits, -1);
  return {log_p.const_data_ptr<double>(), log_p.const_data_ptr<double>() + log_p.numel()};
}

struct Best {
  Ids made;
  double score = -1e300;
};

/// Every text of at most `most` tokens, ended by `stop` or by its length.
void search_all(const model::Model& model,
                const Ids& prompt,
                int64_t stop,
                int64_t most,
                double penalty,
                const Ids& made,
                double log_p,
                Best& best) {
  const auto length = static_cast<int64_t>(made.size()) + 1;
  const std::vector<double> next = next_log_p(model, prompt, made);
  for (int64_t id = 0; id < kVocab; ++id) {
    const double sum = log_p + next[static_cast<size_t>(id)];
    Ids longer = made;
    if (id != stop) longer.push_back(id);
    if (id != stop && length < most) {
      search_all(model, prompt, stop, most, penalty, longer, sum, best);
      continue;
    }
    const double score = sum / std::pow(static_cast<double>(length), penalty);
    if (score > best.score) best = {longer, score};
  }
}

TEST(BeamSearch, WithBeamsForAllFindsWhatExhaustiveSearchFinds) {
  std::set<Ids> different;
  for (const auto& [name, text] : kModels) {
    const model::Model model = make_model(text);
    for (const Ids& prompt : {Ids{1}, Ids{2, 4, 3}})
      for (const double penalty : {0.0, 1.0, 2.5, -1.0}) {
        SCOPED_TRACE(fmt::format("{}, penalty {}", name, penalty));
        GenerateOptions options;
        options.max_new_tokens = 4;
        options.stop_ids = {0};
        const Generations found = beam_search(model, nullptr, {prompt}, options,
                                              {.beams = 400,
                                               .length_penalty = penalty,
                                               .early_stopping = convert::EarlyStopping::never});
        Best best;
        search_all(model, prompt, 0, 4, penalty, {}, 0, best);
        EXPECT_EQ(found.rows[0].token_ids, best.made);
        EXPECT_EQ(found.rows[0].finish_reason, best.made.size() < 4 ? "stop" : "length");
        different.insert(best.made);
      }
  }
  EXPECT_GE(different.size(), 6u);  // the answers differ, so the test can fail
}

/// A token of two letters: a stop string may end within one.
text::Tokenizer letters() {
  spec::Json file = text::empty_tokenizer_json(spec::Json::array());
  file["pre_tokenizer"] = file["decoder"] =
      text::byte_level_json(true);  // no spaces between tokens
  file["model"] =
      text::bpe_json({{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"d", 4}}, spec::Json::array());
  return text::tokenizer_from_json(file.dump(), "test");
}

/// Every text of at most `most` tokens, ended where it first holds `stop`, or by its length.
void search_all_texts(const model::Model& model,
                      const std::string& stop,
                      int64_t most,
                      double penalty,
                      const Ids& made,
                      const std::string& text,
                      double log_p,
                      Best& best,
                      std::string& best_text) {
  static const char* const kTexts[] = {"a", "b", "c", "ab", "d"};
  const std::vector<double> next = next_log_p(model, {1, 2}, made);
  for (int64_t id = 0; id < kVocab; ++id) {
    const double sum = log_p + next[static_cast<size_t>(id)];
    Ids longer = made;
    longer.push_back(id);
    const std::string whole = text + kTexts[id];
    const size_t at = whole.find(stop);
    if (at == std::string::npos && std::ssize(longer) < most) {
      search_all_texts(model, stop, most, penalty, longer, whole, sum, best, best_text);
      continue;
    }
    const double score = sum / std::pow(static_cast<double>(longer.size()), penalty);
    if (score <= best.score) continue;
    best = {longer, score};
    best_text = whole.substr(0, at);
  }
}

TEST(BeamSearch, StopStringsEndHypotheses) {
  const text::Tokenizer tokenizer = letters();
  std::set<std::string> different;
  int stopped = 0;
  for (const auto& [name, text] : kModels) {
    if (std::string(name) == "pair") continue;
    const model::Model model = make_model(text);
    // "bc": of tokens b, c and of ab, c; "a": of a and of the begin of ab
    for (const std::string stop : {"bc", "a", "ca", "dd"})
      for (const double penalty : {0.0, 1.0, -1.0}) {
        SCOPED_TRACE(fmt::format("{}, stop {}, penalty {}", name, stop, penalty));
        GenerateOptions options;
        options.max_new_tokens = 4;
        options.stop_strings = {stop};
        const BeamOptions beams{.beams = 400,
                                .length_penalty = penalty,
                                .early_stopping = convert::EarlyStopping::never};
        const Generation found = beam_search(model, &tokenizer, {{1, 2}}, options, beams).rows[0];
        Best best;
        std::string want;
        search_all_texts(model, stop, 4, penalty, {}, "", 0, best, want);
        EXPECT_EQ(found.token_ids, best.made);
        EXPECT_EQ(found.text, want);
        EXPECT_EQ(found.stop_string.empty(), found.finish_reason == "length");
        options.keep_stop = true;
        EXPECT_EQ(beam_search(model, &tokenizer, {{1, 2}}, options, beams).rows[0].text,
                  want + found.stop_string);
        different.insert(want);
        stopped += found.finish_reason == "stop" ? 1 : 0;
      }
  }
  EXPECT_GE(different.size(), 6u);
  EXPECT_GE(stopped, 8);
}

// the end of a long text is looked at alone
TEST(BeamSearch, AStopStringFarBehindTheBeginIsFound) {
  const text::Tokenizer tokenizer = letters();
  const model::Model model = make_model(kModels[0].second);
  GenerateOptions options;
  options.max_new_tokens = 200;
  const std::string whole =
      beam_search(model, &tokenizer, {{1, 2}}, options, {.beams = 1, .length_penalty = 0})
          .rows[0]
          .text;
  ASSERT_GE(whole.size(), 200u);
  // a string that comes for the first time as late as can be
  std::string stop;
  for (size_t n = 2; n <= 60 && stop.empty(); ++n)
    for (size_t at = 150; at + n <= 190 && stop.empty(); ++at)
      if (whole.find(whole.substr(at, n)) == at) stop = whole.substr(at, n);
  if (stop.empty()) stop = whole.substr(0, 100);  // a text that repeats itself
  options.stop_strings = {stop};
  const Generation found =
      beam_search(model, &tokenizer, {{1, 2}}, options, {.beams = 1, .length_penalty = 0}).rows[0];
  EXPECT_EQ(found.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(found.finish_reason, "stop");
  EXPECT_EQ(found.stop_string, stop);
}

TEST(BeamSearch, OneBeamWithoutPenaltyIsGreedy) {
  for (const auto& [name, text] : kModels) {
    const model::Model model = make_model(text);
    for (const bool stops : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, stops {}", name, stops));
      GenerateOptions options;
      options.max_new_tokens = 12;
      if (stops) options.stop_ids = {0, 3};
      const std::vector<Ids> prompts = {{1, 2}, {4}, {3, 3, 2}};
      const Generations greedy = generate(model, nullptr, prompts, options),
                        one = beam_search(model, nullptr, prompts, options,
                                          {.beams = 1, .length_penalty = 0});
      for (size_t r = 0; r < prompts.size(); ++r) {
        EXPECT_EQ(one.rows[r].token_ids, greedy.rows[r].token_ids);
        EXPECT_EQ(one.rows[r].finish_reason, greedy.rows[r].finish_reason);
      }
    }
  }
}

TEST(BeamSearch, MoreBeamsFindTextsAtLeastAsLikely) {
  const model::Model model = make_model(kModels[0].second);
  const auto log_p = [&](int64_t beams) {
    GenerateOptions options;
    options.max_new_tokens = 8;
    const Ids made =
        beam_search(model, nullptr, {{1, 2}}, options, {.beams = beams}).rows[0].token_ids;
    double sum = 0;
    for (size_t i = 0; i < made.size(); ++i)
      sum += next_log_p(
          model, {1, 2},
          Ids(made.begin(), made.begin() + static_cast<int64_t>(i)))[static_cast<size_t>(made[i])];
    return sum;
  };
  EXPECT_GE(log_p(625), log_p(1));
}

TEST(BeamSearch, AgainstTransformers) {
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";
  const spec::Json story = spec::read_json_file(golden / "beams.json");
  const LoadedModel loaded = load_model(golden / story["model"].get<std::string>());
  GenerateOptions options;
  options.max_new_tokens = story["max_new_tokens"].get<int64_t>();
  options.stop_ids = story["stop_ids"].get<Ids>();
  int64_t ended = 0;
  for (const spec::Json& c : story["cases"]) {
    SCOPED_TRACE(c.dump());
    const Generation row =
        beam_search(loaded.model, nullptr, {c["source"].get<Ids>()}, options,
                    {c["beams"].get<int64_t>(), c["length_penalty"].get<double>(),
                     convert::EarlyStopping::never})
            .rows[0];
    EXPECT_EQ(row.token_ids, c["tokens"].get<Ids>());
    EXPECT_EQ(row.finish_reason, c["ended"].get<bool>() ? "stop" : "length");
    ended += c["ended"].get<bool>() ? 1 : 0;
  }
  EXPECT_GE(story["cases"].size(), 12u);
  EXPECT_GE(ended, 3);
}

TEST(ForcedIds, AgainstTransformers) {
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";
  const spec::Json story = spec::read_json_file(golden / "forced.json");
  const LoadedModel loaded = load_model(golden / story["model"].get<std::string>());
  const auto id = [](const spec::Json& value) {
    return value.is_null() ? std::optional<int64_t>() : value.get<int64_t>();
  };
  for (const spec::Json& c : story["cases"]) {
    SCOPED_TRACE(c.dump());
    GenerateOptions options;
    options.max_new_tokens = story["max_new_tokens"].get<int64_t>();
    options.stop_ids = story["stop_ids"].get<Ids>();
    if (const auto begin = id(c["forced_begin"])) options.forced_begin = {*begin};
    options.forced_end = id(c["forced_end"]);
    const auto beams = c["beams"].get<int64_t>();
    const std::vector<Ids> sources = {c["source"].get<Ids>()};
    std::vector<Generations> found = {
        beams > 1 ? beam_search(loaded.model, nullptr, sources, options,
                                {.beams = beams, .early_stopping = convert::EarlyStopping::never})
                  : generate(loaded.model, nullptr, sources, options)};
    if (beams == 1) {  // guesses change nothing
      options.speculation.lookup = 2;
      found.push_back(generate(loaded.model, nullptr, sources, options));
    }
    for (const Generations& one : found) {
      EXPECT_EQ(one.rows[0].token_ids, c["tokens"].get<Ids>());
      EXPECT_EQ(one.rows[0].finish_reason, c["ended"].get<bool>() ? "stop" : "length");
    }
  }
  EXPECT_GE(story["cases"].size(), 30u);
}

TEST(ForcedIds, AreOfTheModelsFolder) {
  const fs::path bart = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/bart/base";
  EXPECT_EQ(convert::read_generation_config(bart, 64, {}).forced_end, 2);
  EXPECT_FALSE(convert::read_generation_config(bart, 64, {}).forced_begin);
  EXPECT_THROW(convert::read_generation_config(bart, 2, {}), Error);
  EXPECT_FALSE(convert::read_generation_config("/nowhere", 2, {}).forced_end);
  const test::TemporaryFolder older;
  older.write("config.json", R"({"bos_token_id": 5, "force_bos_token_to_be_generated": true})");
  EXPECT_EQ(convert::read_generation_config(older.path(), 64, {}).forced_begin, 5);
}

TEST(BeamSearch, RefusesWhatItCannotDo) {
  const model::Model model = make_model(kModels[0].second);
  GenerateOptions options;
  EXPECT_THROW(beam_search(model, nullptr, {{1}}, options, {.beams = 0}), Error);
  EXPECT_THROW(beam_search(model, nullptr, {{}}, options, {.beams = 2}), Error);
  options.stop_strings = {"x"};
  EXPECT_THROW(beam_search(model, nullptr, {{1}}, options, {.beams = 2}), Error);
}

}  // namespace
}  // namespace tessera::infer::beam_test
