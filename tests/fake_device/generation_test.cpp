// Generation on another device: every option gives the text of the CPU.
#include <gtest/gtest.h>

#include <future>

#include "fake_device/tested_device.h"
#include "tessera/infer/encoders/classify.h"
#include "tessera/infer/encoders/judge_testing.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/engine/prefix_cache.h"
#include "tessera/infer/engine/session.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/model/placement.h"
#include "tessera/serve/scheduler.h"
#include "tessera/serve/serve_testing.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

namespace tessera::infer::generation_device_test {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

class GenerationOnDevice : public testing::Test {
 protected:
  static const std::string& layers(const std::string& kind) {
    static const auto all = tiny_layers();
    for (const auto& [name, text] : all)
      if (name == kind) return text;
    throw std::logic_error(kind);
  }
  /// `run` with a model on the CPU and on the device; the texts agree.
  void expect_same(const std::string& what,
                   const model::Model& model,
                   const std::function<Generations(const model::Model&)>& run) const {
    SCOPED_TRACE(what);
    const Generations want = run(model), got = run(model::to_device(model, device_));
    ASSERT_EQ(got.rows.size(), want.rows.size());
    for (size_t r = 0; r < want.rows.size(); ++r) {
      EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids) << r;
      EXPECT_EQ(got.rows[r].finish_reason, want.rows[r].finish_reason) << r;
      ASSERT_EQ(got.rows[r].logprobs.size(), want.rows[r].logprobs.size()) << r;
      for (size_t i = 0; i < want.rows[r].logprobs.size(); ++i)
        EXPECT_NEAR(got.rows[r].logprobs[i].chosen.log_p, want.rows[r].logprobs[i].chosen.log_p,
                    1e-4);
    }
  }

  const at::Device device_ = test::tested_device();
  const Prompts prompts_{random_tokens(9, 1), random_tokens(31, 2)};
};

TEST_F(GenerationOnDevice, OptionsOfSamplingAndOfTheCache) {
  for (const char* kind : {"attention", "hybrid"}) {
    const model::Model model = tiny_model(layers(kind), 3);
    const auto with = [&](const std::string& what,
                          const std::function<void(GenerateOptions&)>& set) {
      expect_same(std::string(kind) + ", " + what, model, [&](const model::Model& on) {
        GenerateOptions options;
        options.max_new_tokens = 20;
        options.logprobs = 2;
        set(options);
        return generate(on, nullptr, prompts_, options);
      });
    };
    with("sampled", [](GenerateOptions& o) {
      o.choices = 3;
      o.sampling = {.temperature = 0.8, .top_k = 9, .top_p = 0.9, .repetition_penalty = 1.2};
      o.sampling.seed = 5;
    });
    with("chunked prefill", [](GenerateOptions& o) { o.prefill_chunk = 4; });
    with("context shift", [](GenerateOptions& o) {
      o.context = 40;
      o.shift = true;
    });
    with("prompt lookup", [](GenerateOptions& o) { o.speculation.lookup = 3; });
    if (std::string(kind) != "attention") continue;
    with("f16 cache", [](GenerateOptions& o) { o.kv.type = spec::kv_type_named("f16"); });
    with("int8 cache", [](GenerateOptions& o) { o.kv.type = spec::kv_type_named("int8"); });
    with("contiguous cache", [](GenerateOptions& o) { o.kv.page = 0; });
    with("tree by an early exit", [](GenerateOptions& o) {
      o.speculation.exit_layer = 1;
      o.speculation.tree_width = 2;
    });
  }
}

TEST_F(GenerationOnDevice, DraftModelsBeamsAndPrefixes) {
  const model::Model model = tiny_model(layers("attention"), 3),
                     draft = tiny_model(layers("mamba2"), 4);
  GenerateOptions options;
  options.max_new_tokens = 20;
  expect_same("draft model", model, [&](const model::Model& on) {
    const model::Model guesses = model::to_device(draft, model::device_of(on));
    GenerateOptions own = options;
    own.speculation.draft = &guesses;
    return generate(on, nullptr, prompts_, own);
  });
  expect_same("beam search", model, [&](const model::Model& on) {
    return beam_search(on, nullptr, prompts_, options, {.beams = 3});
  });
  expect_same("prefix cache", model, [&](const model::Model& on) {
    PrefixCache cache(on, PrefixCacheOptions{.snapshot_every = 8});
    GenerateOptions own = options;
    own.prefix_cache = &cache;
    generate(on, nullptr, prompts_, own);
    const Generations again = generate(on, nullptr, prompts_, own);
    EXPECT_GT(cache.stats().cached_tokens, 0);
    return again;
  });
  expect_same("encoder-decoder", tiny_pair(R"({"type": "attention", "n_heads": 2})", 3),
              [&](const model::Model& on) { return generate(on, nullptr, prompts_, options); });
}

TEST_F(GenerationOnDevice, ASessionContinuesOnEitherDevice) {
  const test::TemporaryFolder folder;
  const auto file = folder / "a.session";
  const model::Model model = tiny_model(layers("hybrid"), 3),
                     there = model::to_device(model, device_);
  const std::string print = fingerprint(model, nullptr);
  EXPECT_EQ(fingerprint(there, nullptr), print);
  GenerateOptions options;
  options.max_new_tokens = 10;
  const auto half = [&](const model::Model& on, const Prompts& prompts, Session session) {
    options.session = &session;
    const Generations made = generate(on, nullptr, prompts, options);
    save_session(file, session, print);
    return made.rows[1].token_ids;
  };
  const Prompts none(2);
  half(model, prompts_, {});
  const auto want = half(model, none, load_session(file, model, print));
  half(there, prompts_, {});
  EXPECT_EQ(half(there, none, load_session(file, there, print)), want);
  half(there, prompts_, {});
  EXPECT_EQ(half(model, none, load_session(file, model, print)), want);
}

TEST_F(GenerationOnDevice, PerplexityIsThatOfTheCpu) {
  for (const char* kind : {"attention", "mamba2"}) {
    const model::Model model = tiny_model(layers(kind), 3);
    EvalOptions options;
    options.window = 16;
    options.carry = true;
    const std::vector<int64_t> ids = random_tokens(50, 4);
    const double want = evaluate(model, ids, options).nll;
    EXPECT_NEAR(evaluate(model::to_device(model, device_), ids, options).nll, want, 1e-5 * want);
  }
}

TEST_F(GenerationOnDevice, ADecodingStepReadsTheLogitsAtOnce) {
  if (!test::is_test_device()) GTEST_SKIP() << "copies are counted on the test device";
  const model::Model model = tiny_model(layers("attention"), 3),
                     there = model::to_device(model, device_);
  const auto reads = [&](int64_t tokens) {
    GenerateOptions options;
    options.max_new_tokens = tokens;
    fake_device::reset_counts();
    generate(there, nullptr, prompts_, options);
    const fake_device::Counts counts = fake_device::counts();
    return counts.scalars + counts.to_host;
  };
  EXPECT_EQ(reads(21) - reads(11), 10);
}

TEST_F(GenerationOnDevice, DecodingStepsAreReplayed) {
  if (!test::is_test_device()) GTEST_SKIP() << "operators are counted on the test device";
  for (const auto& [name, text] : tiny_layers()) {
    SCOPED_TRACE(name);
    const model::Model model = tiny_model(text, 3), there = model::to_device(model, device_);
    GenerateOptions options;
    options.max_new_tokens = 21;
    // prompts are of one length, so that the first step of both follows one call
    const Prompts prompts{random_tokens(9, 1), random_tokens(9, 2)};
    const auto run = [&](const model::Model& on) {
      fake_device::reset_counts();
      return generate(on, nullptr, prompts, options);
    };
    const Generations want = run(model), got = run(there);
    for (size_t r = 0; r < want.rows.size(); ++r)
      EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids);
    EXPECT_EQ(got.replayed_steps, 20);
    EXPECT_EQ(got.recording_failure, "");
    EXPECT_EQ(fake_device::counts().replays, 20);
    // what a replay does not launch: ids, the head, the choice of tokens
    const auto operators = [&](int64_t tokens) {
      options.max_new_tokens = tokens;
      run(there);
      return fake_device::counts().operators;
    };
    const int64_t many = operators(31), steps = many - operators(21);
    EXPECT_LT(steps, 10 * 20);

    setenv("TESSERA_CUDA_GRAPHS", "0", 1);
    options.max_new_tokens = 21;
    const Generations plain = run(there);
    unsetenv("TESSERA_CUDA_GRAPHS");
    for (size_t r = 0; r < want.rows.size(); ++r)
      EXPECT_EQ(plain.rows[r].token_ids, want.rows[r].token_ids);
    EXPECT_EQ(plain.replayed_steps, 0);
    EXPECT_EQ(fake_device::counts().replays, 0);
  }
}

TEST_F(GenerationOnDevice, StepsAreReplayedWithPackedWeightsAndHalves) {
  if (!test::is_test_device()) GTEST_SKIP() << "graphs of the test device";
  const model::Model whole = tiny_model_of(
      R"({"tessera": 1, "arch": "decoder", "vocab": 23, "d_model": 32, "head": "tied",
          "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
          "ffn": {"type": "mlp", "d_hidden": 64}, "layers": [{"repeat": 2}]})",
      3);
  const auto replayed = [&](const model::Model& model, const char* kv) {
    GenerateOptions options;
    options.max_new_tokens = 21;
    options.kv.type = spec::kv_type_named(kv);
    const Generations want = generate(model, nullptr, prompts_, options),
                      got = generate(model::to_device(model, device_), nullptr, prompts_, options);
    for (size_t r = 0; r < want.rows.size(); ++r)
      EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids) << kv;
    return got.replayed_steps;
  };
  EXPECT_EQ(replayed(whole, "f16"), 20);
  EXPECT_EQ(replayed(whole, "bf16"), 20);
  EXPECT_EQ(replayed(whole, "int8"), 0);
  std::map<std::string, ops::WeightPtr> weights;
  for (const auto& [decl, weight] : whole.weights().all())
    weights[decl.name] = decl.shape.size() == 2
                             ? std::make_shared<const ops::Weight>(weight->converted(DType::q8_0))
                             : weight;
  const model::Model packed(whole.spec(), model::Weights::check(whole.spec(), std::move(weights)));
  EXPECT_EQ(replayed(packed, "f32"), 20);
}

TEST_F(GenerationOnDevice, AStepThatCannotBeRecordedIsComputed) {
  if (!test::is_test_device()) GTEST_SKIP() << "the test device refuses to record";
  const model::Model model = tiny_model(layers("hybrid"), 3),
                     there = model::to_device(model, device_);
  GenerateOptions options;
  options.max_new_tokens = 12;
  const Generations want = generate(model, nullptr, prompts_, options);
  fake_device::refuse_graphs(true);
  const Generations got = generate(there, nullptr, prompts_, options);
  fake_device::refuse_graphs(false);
  for (size_t r = 0; r < want.rows.size(); ++r)
    EXPECT_EQ(got.rows[r].token_ids, want.rows[r].token_ids);
  EXPECT_EQ(got.replayed_steps, 0);
  EXPECT_NE(got.recording_failure.find("operators are not recorded"), std::string::npos)
      << got.recording_failure;
}

TEST_F(GenerationOnDevice, TheDeviceChoosesTheMostLikelyTokens) {
  if (!test::is_test_device()) GTEST_SKIP() << "copies are counted on the test device";
  const model::Model model = tiny_model(layers("attention"), 3),
                     there = model::to_device(model, device_);
  // whether the logits of all steps were copied, or two numbers of each row
  const auto bytes_copied = [&](const GenerateOptions& options) {
    fake_device::reset_counts();
    const Generations got = generate(there, nullptr, prompts_, options);
    const int64_t bytes = fake_device::counts().bytes_to_host;
    const Generations want = generate(model, nullptr, prompts_, options);
    for (size_t i = 0; i < want.rows.size(); ++i)
      EXPECT_EQ(got.rows[i].token_ids, want.rows[i].token_ids);
    return bytes;
  };
  GenerateOptions greedy;
  greedy.max_new_tokens = 12;
  GenerateOptions sampled = greedy, penalized = greedy, filtered = greedy;
  sampled.sampling.temperature = 1;
  penalized.sampling.repetition_penalty = 1.2;
  filtered.sampling.top_k = 3;
  const int64_t rows = 12 * std::ssize(prompts_), all = rows * 4 * model.spec().vocab;
  EXPECT_EQ(bytes_copied(greedy), rows * 16);
  EXPECT_EQ(bytes_copied(filtered), rows * 16);
  EXPECT_EQ(bytes_copied(sampled), all);
  EXPECT_EQ(bytes_copied(penalized), all);
}

TEST_F(GenerationOnDevice, TheServersSchedulerDecodesThere) {
  const auto served = [&](at::Device device) {
    infer::LoadedModel loaded = serve::tiny_loaded("hybrid");
    loaded.model = model::to_device(loaded.model, device);
    return std::make_shared<serve::ServedModel>(serve::ModelEntry{.id = "a", .path = "a"},
                                                std::move(loaded), serve::ModelOptions());
  };
  const auto texts = [&](at::Device device) {
    serve::Metrics metrics;
    serve::Scheduler scheduler({.parallel = 2, .priorities = true}, metrics);
    const serve::ServedModelPtr model = served(device);
    std::vector<std::promise<std::vector<int64_t>>> ends(4);
    for (size_t i = 0; i < ends.size(); ++i) {
      serve::ScheduledRequest job;
      job.model = model;
      job.prompt_tokens = 6 + static_cast<int64_t>(i);
      job.row_bytes = model->state_bytes(job.prompt_tokens + 20, 0);
      job.priority = -static_cast<int64_t>(i);  // later ones preempt
      Request request{first_sequence(model->spec(),
                                     random_tokens(job.prompt_tokens, i + 1, model->spec().vocab))};
      request.decoding.max_new_tokens = 20;
      request.decoding.sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9, .seed = i};
      job.requests.push_back(std::move(request));
      job.on_end = [&ends, i](std::vector<Generation> made, serve::FinishStatus,
                              std::exception_ptr error) {
        if (error)
          ends[i].set_exception(error);
        else
          ends[i].set_value(made.at(0).token_ids);
      };
      scheduler.submit(std::move(job));
    }
    std::vector<std::vector<int64_t>> out;
    for (auto& end : ends) out.push_back(end.get_future().get());
    return out;
  };
  EXPECT_EQ(texts(device_), texts(at::kCPU));
}

/// An encoder of kWords with these heads.
infer::LoadedModel encoder(const std::string& heads) {
  const text::Tokenizer words = text::tokenizer_from_vocab(kWords, "words");
  return {
      tiny_model_of(fmt::format(R"({{"tessera": 1, "arch": "encoder", "vocab": {}, "d_model": 16,
                  "embed": {{"type": "token", "position": {{"type": "learned", "n_positions": 16}},
                             "n_types": 2}},
                  "norm": "layer_norm", "ffn": {{"type": "mlp", "d_hidden": 24}},
                  "layers": [{{"repeat": 2, "mixer": {{"type": "attention", "n_heads": 2}}}}],
                  "heads": [{}]}})",
                                words.vocab_size(), heads),
                    3),
      words,
      {},
      {}};
}

TEST_F(GenerationOnDevice, ClassesAndAnswers) {
  const auto on = [](const char* heads, at::Device device) {
    LoadedModel loaded = encoder(heads);
    loaded.model = model::to_device(loaded.model, device);
    return loaded;
  };
  constexpr const char *kTexts = R"({"type": "classifier", "n_labels": 3}, "pooler")",
                       *kWordHead = R"({"type": "classifier", "n_labels": 4, "of": "tokens"})",
                       *kSpans = R"({"type": "span"})";
  const std::vector<ClassifierPair> pairs = {{"cat dog"}, {"cat", "sun moon"}};
  const auto want = classify_texts(on(kTexts, at::kCPU), pairs, {}),
             got = classify_texts(on(kTexts, device_), pairs, {});
  for (size_t i = 0; i < pairs.size(); ++i)
    for (size_t c = 0; c < 3; ++c)
      EXPECT_NEAR(got[i].probabilities[c], want[i].probabilities[c], 1e-6);
  const auto want_words = classify_words(on(kWordHead, at::kCPU), {"cat", "sun"}, {}),
             got_words = classify_words(on(kWordHead, device_), {"cat", "sun"}, {});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got_words[i].best, want_words[i].best);
    EXPECT_NEAR(got_words[i].probability, want_words[i].probability, 1e-6);
  }
  const auto want_answer = find_answer(on(kSpans, at::kCPU), "cat", "dog sun moon", {}),
             got_answer = find_answer(on(kSpans, device_), "cat", "dog sun moon", {});
  EXPECT_EQ(got_answer.begin, want_answer.begin);
  EXPECT_NEAR(got_answer.score, want_answer.score, 1e-6);
}

/// Numbers that are close, and all else equal.
void expect_near(const spec::Json& got, const spec::Json& want, const std::string& where) {
  if (want.is_number_float()) {
    ASSERT_TRUE(got.is_number()) << where;
    EXPECT_NEAR(got.get<double>(), want.get<double>(), 1e-5) << where;
  } else if (want.is_structured() && got.type() == want.type() && got.size() == want.size()) {
    for (auto a = got.begin(), b = want.begin(); b != want.end(); ++a, ++b)
      expect_near(*a, *b, where + (want.is_object() ? "." + b.key() : ""));
  } else {
    EXPECT_EQ(got, want) << where;
  }
}

TEST_F(GenerationOnDevice, TheServerComputesThere) {
  const auto answers = [](at::Device device) {
    serve::ServiceOptions options =
        serve::options_of({"hybrid", "classes", "words", "fits", "mask", "vectors"});
    options.models.device = device;
    options.models.load = [](const serve::ModelEntry& entry) {
      const std::string& name = entry.path;
      return name == "hybrid"    ? serve::tiny_loaded(name)
             : name == "classes" ? encoder(R"({"type": "classifier", "n_labels": 3}, "pooler")")
             : name == "words" ? encoder(R"({"type": "classifier", "n_labels": 4, "of": "tokens"})")
             : name == "fits"  ? encoder(R"({"type": "classifier", "n_labels": 1}, "pooler")")
                               : encoder(R"({"type": "linear"})");
    };
    serve::Running server(options);
    serve::Client client = server.client();
    spec::Json all;
    const auto ask = [&](const std::string& route, spec::Json body, const char* of) {
      const serve::Client::Reply reply = client.post(route, body);
      EXPECT_EQ(reply.status, 200) << route << " " << reply.body;
      all[route + " " + body.value("model", "")] = reply.json().value(of, spec::Json());
    };
    ask("/v1/completions",
        {{"model", "hybrid"},
         {"prompt", "ab"},
         {"max_tokens", 12},
         {"logprobs", 2},
         {"temperature", 0}},
        "choices");
    ask("/v1/chat/completions",
        {{"model", "hybrid"},
         {"messages", serve::user("hi")},
         {"max_tokens", 12},
         {"temperature", 0.8},
         {"seed", 3}},
        "choices");
    ask("/v1/embeddings", {{"model", "vectors"}, {"input", {"cat dog", "sun"}}}, "data");
    ask("/v1/classify", {{"model", "classes"}, {"input", {"cat dog", "sun"}}}, "data");
    ask("/v1/classify", {{"model", "words"}, {"input", {"cat dog"}}}, "data");
    ask("/v1/rerank", {{"model", "fits"}, {"query", "cat"}, {"documents", {"dog sun", "moon"}}},
        "results");
    ask("/v1/fill-mask", {{"model", "mask"}, {"input", "the [MASK]"}, {"top_k", 3}}, "data");
    return all;
  };
  const spec::Json want = answers(at::kCPU);
  fake_device::reset_counts();
  expect_near(answers(device_), want, "");
  if (test::is_test_device()) {
    EXPECT_GT(fake_device::counts().operators, 100);
  }
}

}  // namespace
}  // namespace tessera::infer::generation_device_test
