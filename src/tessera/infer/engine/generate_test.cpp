#include "tessera/infer/engine/generate.h"

#include <set>

#include <ATen/CPUGeneratorImpl.h>

#include "tessera/base/testing.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/nn/embed/feature_batch.h"

namespace tessera::infer::generate_test {
namespace {

std::vector<std::vector<int64_t>> tokens_of(const Generations& generations) {
  std::vector<std::vector<int64_t>> rows;
  for (const Generation& row : generations.rows) rows.push_back(row.token_ids);
  return rows;
}

// three prompts of unequal lengths, one of which says the same again and again
std::vector<std::vector<int64_t>> prompts() {
  return {random_tokens(9, 1), {4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5}, random_tokens(2, 2)};
}

class Guessing : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Guessing, SaysWhatPlainGenerationSays) {
  const auto& [name, layers] = GetParam();
  const model::Model model = tiny_model(layers, 7), other = tiny_model(layers, 8);
  for (const double temperature : {0.0, 0.9}) {
    GenerateOptions plain;
    plain.max_new_tokens = 40;
    plain.sampling.temperature = temperature;
    plain.sampling.repetition_penalty = 1.05;
    plain.sampling.seed = 3;
    const Generations want = generate(model, nullptr, prompts(), plain);
    for (const int64_t drafts : {1, 4, 7}) {
      for (const model::Model* draft :
           {&model, &other, static_cast<const model::Model*>(nullptr)}) {
        GenerateOptions options = plain;
        options.speculation = {draft, draft == nullptr ? 3 : 0, drafts};
        const Generations got = generate(model, nullptr, prompts(), options);
        EXPECT_EQ(tokens_of(got), tokens_of(want)) << drafts << " " << temperature;
        EXPECT_GE(got.drafted_tokens, got.accepted_tokens);
        if (draft == &model) {
          EXPECT_EQ(got.accepted_tokens, got.drafted_tokens);  // it knows
        } else if (draft == &other) {
          EXPECT_LT(got.accepted_tokens, got.drafted_tokens);  // it errs
        }
        EXPECT_GT(got.drafted_tokens, 0);
        // as many as pay: other guesses, the same text
        options.speculation.adaptive = true;
        EXPECT_EQ(tokens_of(generate(model, nullptr, prompts(), options)), tokens_of(want));
      }
    }
  }
}

// wrong guesses alone would not show that right ones are kept, nor the other way round
TEST_P(Guessing, ADraftThatErrsNowAndThen) {
  const auto& [name, layers] = GetParam();
  const model::Model model = tiny_model(layers, 7);
  GenerateOptions options;
  options.max_new_tokens = 60;
  const Generations want = generate(model, nullptr, prompts(), options);
  int64_t guessed = 0, accepted = 0;
  for (const double scale : {0.9, 0.3}) {
    // the same weights but for every third row of the head
    const model::Model draft = tiny_model(layers, 7);
    Tensor head = draft.weights().find("head.weight")->dense_tensor();
    for (int64_t i = 0; i < head.size(0); i += 3) head[i].mul_(scale);
    options.speculation = {&draft, 0, 4};
    const Generations got = generate(model, nullptr, prompts(), options);
    EXPECT_EQ(tokens_of(got), tokens_of(want)) << scale;
    guessed += got.drafted_tokens;
    accepted += got.accepted_tokens;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, guessed);
}

TEST_P(Guessing, StopsWherePlainGenerationStops) {
  const auto& [name, layers] = GetParam();
  const model::Model model = tiny_model(layers, 7);
  GenerateOptions plain;
  plain.max_new_tokens = 40;
  plain.context = 30;
  plain.sampling.temperature = 0.9;
  const Generations free = generate(model, nullptr, prompts(), plain);
  // a token that the second row says in the middle of its text
  plain.stop_ids = {free.rows[1].token_ids[7]};
  const Generations want = generate(model, nullptr, prompts(), plain);
  EXPECT_EQ(want.rows[1].finish_reason, "stop");
  for (const model::Model* draft : {&model, static_cast<const model::Model*>(nullptr)}) {
    GenerateOptions options = plain;
    options.speculation = {draft, draft == nullptr ? 3 : 0, 5};
    const Generations got = generate(model, nullptr, prompts(), options);
    EXPECT_EQ(tokens_of(got), tokens_of(want));
    for (size_t r = 0; r < 3; ++r)
      EXPECT_EQ(got.rows[r].finish_reason, want.rows[r].finish_reason) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Guessing, ::testing::ValuesIn(tiny_layers()), [](const auto& info) {
  return info.param.first;
});

// the draft reads the same source, once
TEST(Generate, ADraftBesideAnEncoderSaysWhatPlainGenerationSays) {
  for (const char* mixer : {R"({"type": "attention", "n_heads": 2, "position": "rope"})",
                            R"({"type": "mamba2", "n_heads": 4, "d_state": 8})"}) {
    SCOPED_TRACE(mixer);
    const model::Model model = tiny_pair(mixer, 7), other = tiny_pair(mixer, 8);
    for (const int64_t chunk : {1024, 12}) {  // the second: not all sources in one call
      GenerateOptions plain;
      plain.max_new_tokens = 16;
      plain.prefill_chunk = chunk;
      plain.forced_begin = {3};
      const Generations want = generate(model, nullptr, prompts(), plain);
      for (const model::Model* draft : {&model, &other}) {
        GenerateOptions options = plain;
        options.speculation = {draft, 0, 4};
        const Generations got = generate(model, nullptr, prompts(), options);
        EXPECT_EQ(tokens_of(got), tokens_of(want));
        EXPECT_GT(got.drafted_tokens, 0);
        if (draft == &model)
          EXPECT_EQ(got.accepted_tokens, got.drafted_tokens);
        else
          EXPECT_LT(got.accepted_tokens, got.drafted_tokens);
      }
    }
  }
}

TEST(Generate, TextsHereAreVaried) {
  for (const auto& [name, layers] : tiny_layers()) {
    GenerateOptions options;
    options.max_new_tokens = 40;
    const auto rows = tokens_of(generate(tiny_model(layers, 7), nullptr, prompts(), options));
    std::set<int64_t> said;
    for (const auto& row : rows) said.insert(row.begin(), row.end());
    EXPECT_GE(said.size(), 5u) << name;
  }
}

TEST(Generate, EndsWhereAnyPartOfTheModelEnds) {
  for (const char* mixer :
       {R"({"type": "gmlp", "d_hidden": 12, "max_length": 16})",
        R"({"type": "hyena", "max_length": 16})",
        R"({"type": "attention", "n_heads": 2, "position": {"type": "tupe", "n_positions": 16}})"})
    for (const int64_t lookup : {0, 3}) {
      SCOPED_TRACE(mixer);
      const model::Model model = tiny_model(fmt::format(R"({{"mixer": {}}})", mixer), 7);
      GenerateOptions options;
      options.max_new_tokens = 40;
      options.speculation.lookup = lookup;
      const Generations got = generate(model, nullptr, prompts(), options);
      for (size_t r = 0; r < prompts().size(); ++r) {
        EXPECT_EQ(got.rows[r].finish_reason, "length");
        // the last token is never fed
        EXPECT_EQ(got.rows[r].token_ids.size(), 16 - prompts()[r].size() + 1);
      }
      test::expect_error(ErrorKind::input, "has 17 tokens; this model's context is 16",
                         [&] { generate(model, nullptr, {random_tokens(17, 1)}, options); });
    }
}

TEST(Generate, StartsOnceEverythingIsFoundGood) {
  const model::Model stateless = tiny_model(
      R"({"mixer": {"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4}})", 7);
  const auto starts = [&](const GenerateOptions& given) {
    GenerateOptions options = given;
    int64_t n = 0;
    options.max_new_tokens = 2;
    options.on_start = [&] { ++n; };
    try {
      generate(stateless, nullptr, prompts(), options);
      EXPECT_EQ(n, 1);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_EQ(n, 0) << error.what();
      return false;
    }
  };
  GenerateOptions options;
  EXPECT_TRUE(starts(options));
  options.kv.type = spec::KvType::int8;
  EXPECT_FALSE(starts(options));
  options = {};
  options.speculation.lookup = 3;
  EXPECT_FALSE(starts(options));
}

TEST(Generate, SpeculationThatCannotBeIsRefused) {
  const auto layers = tiny_layers();
  const model::Model model = tiny_model(layers[0].second, 1),
                     other = tiny_model(layers[0].second, 1, 29);
  const auto refused = [&](const infer::Speculation& how, const std::string& part) {
    GenerateOptions options;
    options.speculation = how;
    test::expect_error(ErrorKind::usage, part,
                       [&] { generate(model, nullptr, prompts(), options); });
  };
  refused({&other, 0, 4},
          "vocabulary of the draft model: 29 tokens, of the model: 23; they must be the same");
  refused({&model, 2, 4}, "several sources of draft tokens; expected one of");
  refused({&model, 0, 0}, "0 draft tokens");
  const model::Model pair = tiny_pair(R"({"type": "attention", "n_heads": 2})", 1);
  refused({&pair, 0, 4}, "the draft model is an encoder-decoder");
  GenerateOptions options;
  options.speculation = {&model, 0, 4};
  test::expect_error(ErrorKind::usage, "the draft model has no encoder",
                     [&] { generate(pair, nullptr, prompts(), options); });
}

TEST(Generate, SourcesHaveAVocabularyOfTheirOwn) {
  const model::Model pair = tiny_model_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 23,
      "d_model": 16, "start": 1, "tokens": "own", "mixer": {"type": "attention", "n_heads": 2},
      "ffn": {"type": "mlp", "d_hidden": 24}, "cross": {"type": "cross_attention", "n_heads": 2},
      "stacks": {"encoder": {"vocab": 31, "layers": [{}]}, "decoder": {"layers": [{}]}},
      "head": "linear"})",
                                          5);
  GenerateOptions options;
  options.max_new_tokens = 4;
  EXPECT_EQ(generate(pair, nullptr, {{30, 24}}, options).rows.at(0).token_ids.size(), 4u);
  test::expect_error(ErrorKind::input, "expected 0 to 30",
                     [&] { generate(pair, nullptr, {{31}}, options); });
  options.sampling.encoder_no_repeat_ngram_size = 2;
  test::expect_error(ErrorKind::usage, "whose vocabularies differ",
                     [&] { generate(pair, nullptr, {{30}}, options); });
}

// --- features ---------------------------------------------------------------------------------

model::Model listener(uint64_t seed, const char* layers = R"({"repeat": 2})") {
  return tiny_model_of(fmt::format(R"({{"tessera": 1, "arch": "encoder_decoder", "vocab": 23,
      "d_model": 16, "start": 1, "mixer": {{"type": "attention", "n_heads": 2}},
      "ffn": {{"type": "mlp", "d_hidden": 24}},
      "cross": {{"type": "cross_attention", "n_heads": 2}},
      "stacks": {{"encoder": {{"embed": {{"type": "frames", "channels": 3}}, "layers": [{{}}]}},
                  "decoder": {{"layers": [{}]}}}},
      "head": "linear"}})",
                                   layers),
                       seed);
}

Tensor sound(int64_t frames, uint64_t seed) {
  return at::randn({3, frames}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

// the encoder's output was compared with the formula's elsewhere: here the loop is
TEST(Features, AreAnsweredAsTheModelAnswersThemTokenByToken) {
  const model::Model model = listener(5);
  const Tensor x = sound(11, 1);
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.context = 13;  // of the answer: a source of 6 tokens has its own
  options.features = {x};
  const at::NoGradGuard no_gradients;
  const nn::Encoded encoded =
      model.encode(nn::feature_batch(*feature_source(model.spec()), {x}), {});
  std::vector<int64_t> ids{1};
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    model::ForwardOptions call;
    call.encoded = &encoded;
    const Tensor hidden = model.hidden(nn::Batch::of({ids}), call);
    ids.push_back(model.logits(hidden.narrow(0, hidden.size(0) - 1, 1)).argmax().item<int64_t>());
  }
  const Generations got = generate(model, nullptr, {}, options);
  EXPECT_EQ(got.rows.at(0).token_ids, std::vector<int64_t>(ids.begin() + 1, ids.end()));
  EXPECT_GE(std::set<int64_t>(ids.begin(), ids.end()).size(), 4u);
  EXPECT_EQ(got.rows[0].prompt_tokens, 6);
  // what the encoder takes is time of reading
  EXPECT_GT(got.prefill_seconds, 0);
  EXPECT_GT(got.decode_seconds, 0);
}

TEST(Features, RowsSayWhatTheySayAlone) {
  // an LSH layer leaves no state to go on from: whole passes, with each source encoded once
  for (const char* layers :
       {R"({"repeat": 2})", R"({"mixer": {"type": "lsh_attention", "n_heads": 2, "chunk": 4}})"}) {
    const model::Model model = listener(6, layers);
    GenerateOptions options;
    options.max_new_tokens = 9;
    options.prefill_chunk = 5;
    options.features = {sound(9, 1), sound(4, 2), sound(17, 3)};
    const auto together = tokens_of(generate(model, nullptr, {}, options));
    for (size_t r = 0; r < together.size(); ++r) {
      GenerateOptions alone = options;
      alone.features = {options.features[r]};
      EXPECT_EQ(tokens_of(generate(model, nullptr, {}, alone)).at(0), together[r]) << layers << r;
    }
    EXPECT_NE(together[0], together[2]) << layers;
  }
}

TEST(Features, ADraftHearsTheSameSound) {
  const model::Model model = listener(5), draft = listener(5);
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.features = {sound(11, 1)};
  const Generations want = generate(model, nullptr, {}, options);
  options.speculation = {&draft, 0, 3};
  const Generations got = generate(model, nullptr, {}, options);
  EXPECT_EQ(tokens_of(got), tokens_of(want));
  EXPECT_GT(got.accepted_tokens, 0);
  EXPECT_EQ(got.accepted_tokens, got.drafted_tokens);
}

TEST(Features, WhatDoesNotFitIsRefused) {
  const model::Model model = listener(5);
  const auto refused = [](const model::Model& asked, const std::vector<std::vector<int64_t>>& ids,
                          const GenerateOptions& options, const char* words) {
    EXPECT_NE(test::error_of([&] { generate(asked, nullptr, ids, options); }).find(words),
              std::string::npos)
        << test::error_of([&] { generate(asked, nullptr, ids, options); });
  };
  refused(model, {{1, 2}}, {}, "this model answers input_features [3, frames], not ids");
  GenerateOptions options;
  options.features = {sound(5, 1).narrow(0, 0, 2)};
  refused(model, {}, options, "input_features of document 0 is float [2, 5]; expected floats");
  options.features = {sound(5, 1)};
  refused(model, {{1}}, options, "features with prompts");
  Session session;
  options.session = &session;
  refused(model, {}, options, "features with a session");
  options.session = nullptr;
  PrefixCache cache(model, {});
  options.prefix_cache = &cache;
  refused(model, {}, options, "a prefix cache for answers to features");
  options.prefix_cache = nullptr;
  refused(tiny_model(tiny_layers()[0].second, 7), {}, options,
          "this model has no image or audio input");
  const model::Model reader = tiny_model_of(R"({"tessera": 1, "arch": "encoder_decoder",
      "vocab": 23, "d_model": 16, "start": 1, "mixer": {"type": "attention", "n_heads": 2},
      "ffn": {"type": "mlp", "d_hidden": 24}, "cross": {"type": "cross_attention", "n_heads": 2},
      "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{}]}}, "head": "linear"})",
                                            7);
  options.speculation = {&reader, 0, 3};
  refused(model, {}, options,
          "input of the draft model's encoder: ids, of the model's: input_features");
}

}  // namespace
}  // namespace tessera::infer::generate_test
