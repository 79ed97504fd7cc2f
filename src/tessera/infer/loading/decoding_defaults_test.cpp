// What a model's makers say about decoding, as transformers reads it.
#include "tessera/infer/loading/decoding_defaults.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::infer::decoding_defaults_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

convert::GenerationConfig read(const std::string& json, int64_t vocab = 64) {
  const test::TemporaryFolder folder;
  folder.write("generation_config.json", json);
  return convert::read_generation_config(folder.path(), vocab, config_numbers());
}

DecodingDefaults defaults_of(const std::string& json, TextKind kind = TextKind::continuation) {
  return decoding_defaults(read(json), kind);
}

// what transformers' GenerationConfig holds for the same files
TEST(GenerationConfig, SaysWhatEndsATextAndHowToSample) {
  const test::TemporaryFolder folder;
  folder.write("config.json", R"({"eos_token_id": 3})");
  EXPECT_EQ(convert::read_generation_config(folder.path(), 64, config_numbers()).ends, (Ids{3}));
  const auto config = read(R"({"eos_token_id": [9, 70, 5, 9], "do_sample": true,
      "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05})");
  EXPECT_EQ(config.ends, (Ids{9, 5}));  // nobody says 70
  const SamplingOptions sampling = decoding_defaults(config, TextKind::continuation).sampling;
  EXPECT_EQ(sampling.temperature, 0.6);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.top_p, 0.95);
  EXPECT_EQ(sampling.min_p, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1.05);
}

TEST(GenerationConfig, RefusesValuesOfAnotherTypeOrRange) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"eos_token_id": "</s>"})", "\"eos_token_id\" is \"</s>\""},
      {R"({"do_sample": true, "temperature": -1})", "\"temperature\" is -1"},
      {R"({"do_sample": true, "top_p": 2})", "\"top_p\" is 2"},
      {R"({"temperature": "hot"})", "\"temperature\" is \"hot\""},
      {R"({"top_p": "0.9"})", "\"top_p\" is \"0.9\""},
      {R"({"top_k": 1.5})", "\"top_k\" is 1.5"},
      {R"({"do_sample": 1})", "\"do_sample\" is 1"},
      {R"({"num_beams": 0})", "\"num_beams\" is 0"},
      {R"({"early_stopping": "always"})", "expected true, false or \"never\""},
      {R"({"max_length": -1})", "\"max_length\" is -1"},
      {R"({"min_new_tokens": 2.5})", "expected a whole number"},
      {R"({"bad_words_ids": [3]})", "\"bad_words_ids\" is 3"},
      {R"({"bad_words_ids": [[-1]]})", "expected lists of ids from 0 to 63"},
      {R"({"bad_words_ids": [[3], [64]]})", "\"bad_words_ids\" is [64]; expected lists of ids"},
      {R"({"sequence_bias": [[[3, 64], 1.0]]})", "\"sequence_bias\" is [3,64]; expected lists"},
      {R"({"sequence_bias": [[[3], NaN]]})", "a number is \"NaN\""},
      {R"({"bad_words_ids": {"a": 1}})", "expected a list"},
      {R"({"suppress_tokens": ["a"]})", "\"suppress_tokens\" is"},
      {R"({"sequence_bias": [[[3]]]})", "expected [[ids], number]"},
      {R"({"sequence_bias": {"3": 1.0}})", "expected a list"},
      {R"({"stop_strings": [""]})", "\"stop_strings\" is"},
      {R"({"stop_strings": 3})", "\"stop_strings\" is"},
      {R"({"exponential_decay_length_penalty": [5]})", "expected [tokens, factor above 0]"},
      {R"({"exponential_decay_length_penalty": [5, 0]})", "expected [tokens, factor above 0]"},
      {R"({"repetition_penalty": 0})", "\"repetition_penalty\" is 0"},
      {R"({"forced_eos_token_id": 64})", "\"forced_eos_token_id\" is 64"},
      {"[]", "expected an object"}};
  for (const auto& [json, what] : cases)
    test::expect_error(ErrorKind::file, what, [&, text = json] { read(text); });
}

// dir(GenerationConfig()) of transformers 5.23, and what 5.x removed or added since
TEST(GenerationConfig, KnowsEveryKeyOfTransformers) {
  const std::set<std::string> keys = {"max_length",
                                      "max_new_tokens",
                                      "min_length",
                                      "min_new_tokens",
                                      "early_stopping",
                                      "max_time",
                                      "stop_strings",
                                      "do_sample",
                                      "num_beams",
                                      "use_mtp",
                                      "use_cache",
                                      "cache_implementation",
                                      "cache_config",
                                      "max_cache_len",
                                      "temperature",
                                      "top_k",
                                      "top_p",
                                      "min_p",
                                      "top_h",
                                      "typical_p",
                                      "epsilon_cutoff",
                                      "eta_cutoff",
                                      "repetition_penalty",
                                      "encoder_repetition_penalty",
                                      "length_penalty",
                                      "no_repeat_ngram_size",
                                      "bad_words_ids",
                                      "renormalize_logits",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "remove_invalid_values",
                                      "exponential_decay_length_penalty",
                                      "suppress_tokens",
                                      "begin_suppress_tokens",
                                      "sequence_bias",
                                      "token_healing",
                                      "guidance_scale",
                                      "watermarking_config",
                                      "num_return_sequences",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_scores",
                                      "output_logits",
                                      "return_dict_in_generate",
                                      "pad_token_id",
                                      "bos_token_id",
                                      "eos_token_id",
                                      "encoder_no_repeat_ngram_size",
                                      "decoder_start_token_id",
                                      "is_assistant",
                                      "num_assistant_tokens",
                                      "num_assistant_tokens_schedule",
                                      "assistant_confidence_threshold",
                                      "prompt_lookup_num_tokens",
                                      "max_matching_ngram_size",
                                      "assistant_early_exit",
                                      "assistant_lookbehind",
                                      "target_lookbehind",
                                      "assistant_ensemble_weight",
                                      "speculation_type",
                                      "compile_config",
                                      "disable_compile",
                                      "continuous_batching_config",
                                      "low_memory",
                                      "penalty_alpha",
                                      "dola_layers",
                                      "diversity_penalty",
                                      "num_beam_groups",
                                      "constraints",
                                      "force_words_ids",
                                      "prefill_chunk_size",
                                      "_from_model_config",
                                      "transformers_version"};
  std::set<std::string> known;
  const std::string guide =
      read_text_file(fs::path(TESSERA_SOURCE_DIR) / "docs/guide/generation.md", size_t{1} << 24);
  for (const convert::GenerationKey& key : convert::generation_keys()) {
    EXPECT_TRUE(known.insert(key.name).second) << key.name;
    EXPECT_TRUE(keys.contains(key.name) || key.name == std::string("forced_decoder_ids"));
    if (key.use != convert::KeyUse::without_effect) {
      EXPECT_NE(guide.find(fmt::format("`{}`", key.name)), std::string::npos)
          << key.name << " is not in docs/guide/generation.md";
    }
  }
  for (const std::string& key : keys) EXPECT_TRUE(known.contains(key)) << key;
}

// no key that is not supported passes in silence, unless it is switched off
TEST(GenerationConfig, NamesWhatHasNoEffect) {
  const auto unsupported = [](const std::string& json) { return defaults_of(json).unsupported; };
  using Names = std::vector<std::string>;
  for (const convert::GenerationKey& key : convert::generation_keys()) {
    if (key.use != convert::KeyUse::unsupported) continue;
    EXPECT_EQ(unsupported(fmt::format(R"({{"{}": 3}})", key.name)),
              (Names{fmt::format("{} = 3", key.name)}));
    EXPECT_EQ(unsupported(fmt::format(R"({{"{}": null}})", key.name)), (Names{}));
    EXPECT_EQ(unsupported(fmt::format(R"({{"{}": false}})", key.name)), (Names{}));
    EXPECT_EQ(unsupported(fmt::format(R"({{"{}": []}})", key.name)), (Names{}));
  }
  EXPECT_EQ(unsupported(R"({"guidance_scale": 1.0, "num_return_sequences": 1, "num_beam_groups": 1,
                            "diversity_penalty": 0.0})"),
            (Names{}));
  EXPECT_EQ(unsupported(R"({"num_beams": 4, "do_sample": true})"),
            (Names{"num_beams = 4 (tokens are sampled)"}));
  EXPECT_EQ(
      defaults_of(R"({"num_beams": 4, "do_sample": false})", TextKind::conversation).unsupported,
      (Names{"num_beams = 4 (in a conversation)"}));
  EXPECT_EQ(unsupported(R"({"pad_token_id": 0, "use_cache": true, "cache_implementation": "hybrid",
                            "transformers_version": "4.57"})"),
            (Names{}));
  // a misspelt key, in one line with the nearest name; keys of Whisper's files are known
  EXPECT_EQ(unsupported(R"({"temprature": 0.3, "alignment_heads": [[1, 2]], "lang_to_id": {},
                            "colour_of_ink": 1, "max_new_token": null})"),
            (Names{"temprature (unknown key; did you mean \"temperature\"?)",
                   "colour_of_ink (unknown key)"}));
  EXPECT_EQ(unsupported(R"({"k1": 1, "k2": 1, "k3": 1, "k4": 1, "k5": 1, "k6": 1, "k7": 1, "k8": 1,
                            "k9": 1})")
                .back(),
            "unknown keys that are not listed: 1");
}

// transformers runs with these
TEST(GenerationConfig, TakesWhatTransformersTakes) {
  EXPECT_EQ(read(R"({"sequence_bias": [[[3], Infinity], [[], 1.0]]})").sequence_bias,
            (std::vector<std::pair<Ids, double>>{{{3}, 1e30}}));
  EXPECT_TRUE(read(R"({"bad_words_ids": [[]]})").sequence_bias.empty());
  EXPECT_EQ(read(R"({"exponential_decay_length_penalty": [3, 1e30]})")
                .sampling.at("exponential_decay_factor"),
            1e30);
  // a greedy text uses none of them
  const DecodingDefaults greedy = defaults_of(R"({"temperature": -1, "top_p": 2, "top_k": 5})");
  EXPECT_EQ(greedy.unsupported,
            (std::vector<std::string>{"temperature = -1 (not from 0 to 1000000)",
                                      "top_p = 2 (not from 0 to 1)"}));
  EXPECT_EQ(greedy.sampling.temperature, 0);
  EXPECT_EQ(defaults_of(R"({"do_sample": false, "min_p": -3})").unsupported.size(), 1u);
}

TEST(DecodingDefaults, DrawAsTheMakersSayOrAsAConversationNeeds) {
  const auto sampling = [](const std::string& json, TextKind kind) {
    const SamplingOptions o = defaults_of(json, kind).sampling;
    return std::tuple(o.temperature, o.min_p, o.top_k, o.repetition_penalty);
  };
  using enum TextKind;
  // nobody says
  EXPECT_EQ(sampling("{}", continuation), std::tuple(0.0, 0.0, 0, 1.0));
  EXPECT_EQ(sampling("{}", conversation), std::tuple(0.7, 0.05, 0, 1.0));
  EXPECT_EQ(sampling(R"({"repetition_penalty": 1.1, "eos_token_id": 2})", conversation),
            std::tuple(0.7, 0.05, 0, 1.1));
  EXPECT_EQ(sampling(R"({"repetition_penalty": 1.1})", continuation), std::tuple(0.0, 0.0, 0, 1.1));
  // numbers without do_sample: transformers is greedy, servers take them
  EXPECT_EQ(sampling(R"({"temperature": 0.6, "top_k": 9})", continuation),
            std::tuple(0.0, 0.0, 0, 1.0));
  EXPECT_EQ(sampling(R"({"temperature": 0.6, "top_k": 9})", conversation),
            std::tuple(0.6, 0.0, 9, 1.0));
  EXPECT_EQ(sampling(R"({"do_sample": true, "top_k": 9})", continuation),
            std::tuple(1.0, 0.0, 9, 1.0));
  EXPECT_EQ(sampling(R"({"do_sample": true})", conversation), std::tuple(1.0, 0.0, 0, 1.0));
  EXPECT_EQ(sampling(R"({"do_sample": false, "temperature": 0.6})", conversation),
            std::tuple(0.0, 0.0, 0, 1.0));
}

TEST(DecodingDefaults, OfAGgufFile) {
  format::GgufFile file;
  file.metadata = format::GgufMetadata(
      "model.gguf",
      {{"general.sampling.temp", format::GgufValue::number(0.6F)},
       {"general.sampling.top_k", format::GgufValue::number(int32_t{20})},
       {"general.sampling.penalty_repeat", format::GgufValue::number(1.25F)},
       {"general.sampling.penalty_last_n", format::GgufValue::number(int32_t{64})},
       {"general.sampling.xtc_probability", format::GgufValue::number(0.5F)},
       {"general.sampling.mirostat", format::GgufValue::number(int32_t{1})},
       {"general.sampling.sequence", format::GgufValue::string("top_k;typ_p;temperature")}});
  const auto config = convert::read_generation_config(file, gguf_numbers());
  for (const TextKind kind : {TextKind::continuation, TextKind::conversation}) {
    const DecodingDefaults got = decoding_defaults(config, kind);
    EXPECT_FLOAT_EQ(static_cast<float>(got.sampling.temperature), 0.6F);
    EXPECT_EQ(got.sampling.top_k, 20);
    EXPECT_EQ(got.sampling.repetition_penalty, 1.25);
    EXPECT_EQ(got.sampling.repeat_last_n, 64);
    EXPECT_EQ(got.sampling.xtc_probability, 0.5);
    EXPECT_EQ(got.sampling.samplers,
              (std::vector{Sampler::top_k, Sampler::typical_p, Sampler::temperature}));
    EXPECT_EQ(got.unsupported, (std::vector<std::string>{"general.sampling.mirostat = 1"}));
    EXPECT_EQ(got.source, "general.sampling.*");
    got.sampling.check();
  }
  format::GgufFile bad;
  bad.metadata = format::GgufMetadata(
      "model.gguf", {{"general.sampling.top_p", format::GgufValue::number(1.5F)}});
  test::expect_error(ErrorKind::file,
                     "general.sampling.top_p is 1.5; expected a number from 0 to 1",
                     [&] { convert::read_generation_config(bad, gguf_numbers()); });
  EXPECT_EQ(convert::read_generation_config(format::GgufFile(), gguf_numbers()).source, "");
}

/// All of it, as `generate` takes it over.
Generation decoded(const LoadedModel& loaded,
                   const std::string& json,
                   const Ids& prompt,
                   int64_t most) {
  const DecodingDefaults defaults =
      decoding_defaults(read(json, loaded.source.spec.vocab), TextKind::continuation);
  GenerateOptions options;
  options.max_new_tokens = most;
  options.stop_ids = read(json, loaded.source.spec.vocab).ends;
  take_defaults(
      defaults, [](std::string_view) { return false; }, options);
  take_forced_tokens(defaults, loaded.source.spec.encoder != nullptr, true, options);
  return run_requests(loaded.model, nullptr, {prompt}, options, defaults.beams).rows[0];
}

// generate() of the models of tests/golden/families with these files, by transformers
TEST(DecodingDefaults, GenerateWhatTransformersGenerates) {
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";
  const spec::Json story = spec::read_json_file(golden / "generation_config.json");
  std::map<std::string, int64_t> changed;
  for (const auto& [name, cases] : story["models"].items()) {
    const LoadedModel loaded = load_model(golden / name);
    for (const spec::Json& c : cases) {
      SCOPED_TRACE(name + " " + c["config"].dump() + " " + c["prompt"].dump());
      const Generation got = decoded(loaded, c["config"].dump(), c["prompt"].get<Ids>(),
                                     story["max_new_tokens"].get<int64_t>());
      EXPECT_EQ(got.token_ids, c["tokens"].get<Ids>());
      EXPECT_EQ(got.finish_reason, c["ended"].get<bool>() ? "stop" : "length");
      if (c["changed"].get<bool>())
        for (const auto& [key, value] : c["config"].items()) ++changed[key];
    }
  }
  // each of these changed a text, so that none can be passed over
  for (const char* key :
       {"no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
        "num_beams", "min_new_tokens", "min_length", "max_length", "sequence_bias",
        "exponential_decay_length_penalty", "repetition_penalty", "encoder_repetition_penalty",
        "encoder_no_repeat_ngram_size", "early_stopping", "length_penalty", "renormalize_logits",
        "forced_bos_token_id", "forced_eos_token_id"})
    EXPECT_GE(changed[key], 1) << key;
}

TEST(DecodingDefaults, ALengthThatThePromptFillsIsNamed) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  GenerateOptions options;
  options.max_length = 6;
  const Generation got = generate(model, nullptr, {Ids{1, 2, 3, 4}}, options).rows[0];
  EXPECT_EQ(got.token_ids.size(), 2u);
  EXPECT_EQ(got.limit, Limit::new_tokens);
  test::expect_error(ErrorKind::usage, "a text of 6 tokens, with max_length 6", [&] {
    generate(model, nullptr, {Ids{1, 2, 3, 4, 5, 6}}, options);
  });
}

TEST(DecodingDefaults, AreDescribed) {
  DecodingOptions decoding;
  EXPECT_EQ(describe(decoding, std::nullopt), "greedy");
  decoding.sampling.repetition_penalty = 1.1;
  decoding.sampling.top_p = 0.9;  // nothing is filtered
  EXPECT_EQ(describe(decoding, std::nullopt), "greedy, repetition-penalty 1.1");
  decoding.sampling.temperature = 0.7;
  decoding.sampling.seed = 3;
  decoding.min_new_tokens = 5;
  EXPECT_EQ(describe(decoding, std::nullopt),
            "temperature 0.7, top-p 0.9, repetition-penalty 1.1, min-new-tokens 5, seed 3");
  EXPECT_EQ(describe(decoding, BeamOptions{.beams = 4, .length_penalty = 2}),
            "beam search with 4 beams, length-penalty 2, repetition-penalty 1.1, min-new-tokens 5");
}

}  // namespace
}  // namespace tessera::infer::decoding_defaults_test
