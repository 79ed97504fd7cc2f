// Adapters of PEFT for the tiny models of tests/golden/families: what PEFT computes with them, in
// every way in which they are applied, and the way back.
#include "tessera/infer/loading/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/testing.h"
#include "tessera/convert/peft.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/adapter_testing.h"

namespace tessera::infer::adapter_test {
namespace {

using test::expect_error;

class PeftAdapter : public ::testing::TestWithParam<std::string> {};

TEST_P(PeftAdapter, GivesItsLogitsBesideTheModel) {
  const Golden golden(GetParam());
  const LoadedModel plain = load_model(base_of(GetParam())),
                    adapted = load_model(base_of(GetParam()), {}, adapter_of(GetParam()));
  // one that brings tokens has no logits without it
  if (adapted.source.spec.vocab == plain.source.spec.vocab)
    EXPECT_LT(apart(logits_of(plain.model, golden.ids), golden.without), kTolerance);
  EXPECT_LT(apart(logits_of(adapted.model, golden.ids), golden.with), kTolerance);
}

TEST_P(PeftAdapter, GivesThemMerged) {
  const Golden golden(GetParam());
  if (GetParam().find("-pr") != std::string::npos) {
    expect_error(ErrorKind::usage, "virtual tokens cannot be merged", [&] {
      with_merged_adapter(convert::load_checkpoint(base_of(GetParam())), adapter_of(GetParam()),
                          convert::MergedAs::own_type);
    });
    return;
  }
  const convert::Checkpoint sum =
      with_merged_adapter(convert::load_checkpoint(base_of(GetParam())), adapter_of(GetParam()));
  EXPECT_LT(apart(logits_of(model_of(sum), golden.ids), golden.with), kTolerance);
  // and as a Hugging Face folder
  const test::TemporaryFolder folder;
  convert::write_hf_folder(sum, folder / "merged");
  EXPECT_LT(apart(logits_of(load_model(folder / "merged").model, golden.ids), golden.with),
            kTolerance);
}

TEST_P(PeftAdapter, GivesThemBesideAFloatGguf) {
  const fs::path base = base_of(GetParam());
  const fs::path gguf = base.parent_path() / "gguf" / (base.filename().string() + ".gguf");
  if (!fs::exists(gguf)) GTEST_SKIP() << "no GGUF file of this model";
  const Golden golden(GetParam());
  const LoadedModel adapted = load_model(gguf, {}, adapter_of(GetParam()));
  EXPECT_LT(apart(logits_of(adapted.model, golden.ids), golden.with), kTolerance);
}

TEST_P(PeftAdapter, IsWrittenAndReadAgain) {
  const bool packed = GetParam() == "gpt_oss-packed" || GetParam() == "granitemoe-packed";
  const convert::Checkpoint base = convert::load_checkpoint(base_of(GetParam()));
  const test::TemporaryFolder folder;
  if (packed) {
    expect_error(ErrorKind::usage, "is a stack of experts",
                 [&] { export_adapter(adapter_of(GetParam()), base, folder / "out"); });
    return;
  }
  if (GetParam() == "llama-tied-only-tokens") {
    expect_error(ErrorKind::usage, "holds no product to write",
                 [&] { export_adapter(adapter_of(GetParam()), base, folder / "out"); });
    return;
  }
  export_adapter(adapter_of(GetParam()), base, folder / "out");
  const Golden golden(GetParam());
  EXPECT_LT(apart(logits_of(load_model(base_of(GetParam()), {}, folder / "out").model, golden.ids),
                  golden.with),
            kTolerance);
}

/// Adapters whose tensors are written as PEFT wrote them.
constexpr const char* kSameTensors[] = {"llama",
                                        "qwen2",
                                        "gpt2",
                                        "qwen2-dora",
                                        "gpt2-dora",
                                        "llama-head",
                                        "qwen2-ia3",
                                        "gpt2-ia3",
                                        "llama-prefix",
                                        "gpt2-prefix",
                                        "gpt2-prompt",
                                        "llama-prompt",
                                        "llama-some",
                                        "llama-tied-embed",
                                        "llama-tied-head",
                                        "llama-pissa",
                                        "mixtral-each",
                                        "llama-tied-both",
                                        "llama-tied-ensure"};

TEST_P(PeftAdapter, IsWrittenAsItWasRead) {
  if (std::find(std::begin(kSameTensors), std::end(kSameTensors), GetParam()) ==
      std::end(kSameTensors))
    GTEST_SKIP() << "has more than one form";
  const convert::Checkpoint base = convert::load_checkpoint(base_of(GetParam()));
  const test::TemporaryFolder folder;
  export_adapter(adapter_of(GetParam()), base, folder / "out");
  const format::TensorFile theirs = format::open_safetensors(adapter_of(GetParam()) /
                                                             convert::kPeftTensors),
                           ours = format::open_safetensors(folder / "out" / convert::kPeftTensors);
  EXPECT_EQ(theirs.tensors().size(), ours.tensors().size());
  for (const format::TensorView& view : theirs.tensors()) {
    const format::TensorView& own = ours.at(view.name);
    EXPECT_EQ(own.shape, view.shape) << view.name;
    // experts' factors are in B
    if (GetParam() != "mixtral-each")
      EXPECT_TRUE(std::equal(own.data.begin(), own.data.end(), view.data.begin(), view.data.end()))
          << view.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden,
                         PeftAdapter,
                         ::testing::Values("llama",
                                           "qwen2",
                                           "gpt2",
                                           "qwen2-dora",
                                           "gpt2-dora",
                                           "llama-head",
                                           "qwen2-ia3",
                                           "gpt2-ia3",
                                           "llama-prefix",
                                           "gpt2-prefix",
                                           "llama-prompt",
                                           "gpt2-prompt",
                                           "llama-tied-embed",
                                           "llama-tied-head",
                                           "llama-tied-both",
                                           "llama-tied-ensure",
                                           "llama-tied-lora-embed",
                                           "llama-tied-lora-head",
                                           "llama-tied-lora-ensure",
                                           "llama-lora-tables",
                                           "llama-tied-tokens",
                                           "llama-tied-tokens-apart",
                                           "llama-tied-only-tokens",
                                           "llama-tokens",
                                           "llama-grown",
                                           "llama-tied-grown",
                                           "llama-grown-both",
                                           "llama-tied-grown-both",
                                           "llama-tied-grown-embed",
                                           "llama-tied-grown-ensure",
                                           "llama-grown-tokens",
                                           "llama-tied-grown-tokens",
                                           "gpt2-bias-all",
                                           "gpt2-bias-lora",
                                           "gpt2-lora-bias",
                                           "mixtral-packed",
                                           "mixtral-each",
                                           "qwen3_moe-packed",
                                           "qwen3_moe-down",
                                           "qwen3_moe-each",
                                           "gpt_oss-packed",
                                           "granitemoe-packed",
                                           "llama-some",
                                           "llama-pissa"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Fresh adapters whose B is not zero.
std::vector<model::WeightAdapter> some_overlays(const model::ModelSpec& spec,
                                                const std::vector<model::OverlayTarget>& targets) {
  std::vector<model::WeightAdapter> overlays = model::fresh_overlays(spec, targets, 5);
  const at::NoGradGuard guard;
  for (const model::WeightAdapter& overlay : overlays) {
    const Tensor b = overlay.b->dense_tensor();
    Tensor(b).copy_((at::arange(b.numel(), at::kFloat) * 1.7).sin().reshape(b.sizes()) * 0.3);
  }
  return overlays;
}

TEST(Adapter, ProductsBesidePartsOfAFusedMatrixAreWrittenAsOne) {
  const convert::Checkpoint base = convert::load_checkpoint(base_of("gpt2"));
  // q and v of c_attn, of two ranks and two scales; nothing beside k
  const auto overlays =
      some_overlays(base.spec, {{.name = "mixer.q", .rank = 2, .alpha = 3},
                                {.name = "mixer.v", .rank = 3, .alpha = 2},
                                {.name = "layers.1.ffn.down", .rank = 1, .alpha = 1}});
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "own");
  write_adapter(folder / "own", overlays, model_of(base));
  export_adapter(folder / "own", base, folder / "peft");
  const format::TensorFile file = format::open_safetensors(folder / "peft" / convert::kPeftTensors);
  EXPECT_EQ(file.at("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight").shape.front(), 5);
  const Golden golden("gpt2");
  const model::Model plain = model_of(base);
  const Tensor expected = logits_of(model::with_adapters(plain, overlays), golden.ids);
  EXPECT_GT(apart(expected, golden.without), 0.05);
  for (const char* kind : {"own", "peft"})
    EXPECT_LT(apart(logits_of(load_model(base_of("gpt2"), {}, folder / kind).model, golden.ids),
                    expected),
              kTolerance)
        << kind;
  const spec::Json json = spec::read_json_file(folder / "peft" / convert::kPeftConfig);
  EXPECT_EQ(json["target_modules"], spec::Json({"1.mlp.c_proj", "c_attn"}));
  EXPECT_EQ(json["fan_in_fan_out"], true);
}

TEST_P(PeftAdapter, GivesThemTokenByTokenFromAState) {
  const Golden golden(GetParam());
  const LoadedModel adapted = load_model(base_of(GetParam()), {}, adapter_of(GetParam()));
  const at::NoGradGuard guard;
  // greedy, each token chosen from PEFT's logits of what was there so far
  for (int64_t b = 0; b < golden.ids.size(0); ++b) {
    std::vector<int64_t> ids;
    for (int64_t t = 0; t < golden.ids.size(1); ++t)
      ids.push_back(golden.ids[b][t].item<int64_t>());
    const std::vector<int64_t> prompt(ids.begin(), ids.begin() + 4);
    GenerateOptions options;
    options.max_new_tokens = 5;
    options.prefill_chunk = 2;
    const Generations out = generate(adapted.model, nullptr, {prompt}, options);
    std::vector<int64_t> all = prompt;
    for (int i = 0; i < 5; ++i) {
      const Tensor logits = logits_of(adapted.model, at::tensor(all, at::kLong).unsqueeze(0));
      all.push_back(logits[-1].argmax().item<int64_t>());
    }
    EXPECT_EQ(out.rows[0].token_ids, std::vector<int64_t>(all.begin() + 4, all.end()));
    // and by the engine's scoring
    Engine engine(adapted.model, {});
    const Engine::Id id = engine.submit(scoring({{}, ids}, next_tokens({{}, ids})));
    while (engine.step(3)) continue;
    const Tensor log_p = at::log_softmax(golden.with[b].to(at::kDouble), -1);
    const Generation scored = engine.take(id).generation;
    ASSERT_EQ(std::ssize(scored.log_p), std::ssize(ids) - 1);
    for (size_t t = 0; t + 1 < ids.size(); ++t)
      EXPECT_NEAR(scored.log_p[t], log_p[static_cast<int64_t>(t)][ids[t + 1]].item<double>(), 2e-4);
  }
}

TEST(Adapter, SeveralAddUpAndAreChosenByName) {
  const LoadedModel base = load_model(base_of("llama"));
  const test::TemporaryFolder folder;
  const auto save = [&](const char* name, const std::vector<model::OverlayTarget>& targets) {
    fs::create_directories(folder / name);
    write_adapter(folder / name, some_overlays(base.source.spec, targets), base.model);
  };
  save("a", {{.name = "mixer.q", .rank = 2, .alpha = 3}});
  save("b", {{.name = "mixer.q", .rank = 3, .alpha = 2}, {.name = "up", .rank = 1, .alpha = 1}});
  const Golden golden("llama");
  Adapters adapters(base, {});
  adapters.add("a", folder / "a");
  adapters.add("b", folder / "b");
  EXPECT_EQ(adapters.names(), (std::vector<std::string>{"a", "b"}));
  const auto of = [&](const std::vector<std::string>& names) {
    return logits_of(adapters.with(names), golden.ids);
  };
  EXPECT_TRUE(at::equal(of({}), logits_of(base.model, golden.ids)));
  EXPECT_TRUE(at::equal(
      of({"a"}), logits_of(load_model(base_of("llama"), {}, folder / "a").model, golden.ids)));
  EXPECT_GT(apart(of({"a"}), of({"b"})), 0.05);
  const LoadedModel both =
      load_model(base_of("llama"), {},
                 std::vector<std::string>{(folder / "a").string(), (folder / "b").string()});
  EXPECT_TRUE(at::equal(of({"a", "b"}), logits_of(both.model, golden.ids)));
  EXPECT_GT(apart(of({"a", "b"}), of({"a"})), 0.05);
  // what they stand beside is there once
  const std::string q = "layers.0.mixer.q.weight";
  EXPECT_EQ(adapters.with({"a"}).weights().find(q)->parts()->w,
            adapters.with({"b"}).weights().find(q)->parts()->w);
  expect_error(ErrorKind::usage, "there is no adapter \"c\"; expected one of: a, b",
               [&] { adapters.with({"c"}); });
  expect_error(ErrorKind::usage, "\"a\" is taken", [&] { adapters.add("a", folder / "b"); });
}

TEST(Adapter, OfOtherWeightsOfTheSameSpecIsRefused) {
  convert::Checkpoint base = convert::load_checkpoint(base_of("llama"));
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "own");
  write_adapter(folder / "own", some_overlays(base.spec, {{"mixer.q", 2, 2}}), model_of(base));
  EXPECT_EQ(read_adapter(folder / "own", base).size(), 2u);
  // the same numbers in blocks are the same model, others are not
  const auto replaced = [&](const std::string& name, DType type, double factor, double noise) {
    convert::Checkpoint other = base;
    const auto owner = std::make_shared<std::vector<ops::Weight>>();
    for (format::TensorView& tensor : other.tensors) {
      if (tensor.name.find(name) == std::string::npos || tensor.shape.size() != 2 ||
          tensor.shape[1] % 32 != 0)
        continue;
      const Tensor numbers = weights_of(base).find(tensor.name)->tensor();
      const Tensor moved =
          numbers * factor +
          noise * (at::arange(numbers.numel(), at::kFloat) * 2.1).sin().reshape(numbers.sizes());
      const auto kept = std::make_shared<const ops::Weight>(
          ops::Weight::dense(tensor.name, moved).converted(type));
      tensor = {tensor.name,
                type,
                tensor.shape,
                {static_cast<const std::byte*>(kept->data()), static_cast<size_t>(kept->bytes())},
                kept};
    }
    return other;
  };
  EXPECT_EQ(read_adapter(folder / "own", replaced("layers.", DType::q8_0, 1, 0)).size(), 2u);
  const char* message = "was trained on other weights: \"";
  expect_error(ErrorKind::usage, fmt::format("{}layers.1.ffn.up.weight\"", message), [&] {
    read_adapter(folder / "own", replaced("layers.1.ffn.up.weight", DType::f32, 1, 1e-3));
  });
  expect_error(ErrorKind::usage, message,
               [&] { read_adapter(folder / "own", replaced("layers.", DType::q8_0, 0, 0.1)); });
}

TEST(Adapter, BringsTheChatTemplateAndTheEndsOfItsTraining) {
  const fs::path base = kGolden / "families/llama/gguf/base.gguf";
  const test::TemporaryFolder folder;
  fs::copy(adapter_of("llama"), folder / "talks");
  folder.write("talks/chat_template.jinja", "TURNS");
  folder.write("talks/generation_config.json", R"({"eos_token_id": 7, "temperature": 2.0})");
  const LoadedModel plain = load_model(base, {}, adapter_of("llama")),
                    talks = load_model(base, {}, folder / "talks");
  const auto ends_with_7 = [](const LoadedModel& loaded) {
    const std::vector<int64_t> ends = eos_ids(loaded);
    return std::find(ends.begin(), ends.end(), 7) != ends.end();
  };
  EXPECT_NE(plain.tokenizer->chat_template(), "TURNS");
  EXPECT_FALSE(ends_with_7(plain));
  EXPECT_EQ(talks.tokenizer->chat_template(), "TURNS");
  EXPECT_TRUE(ends_with_7(talks));
  // how tokens are drawn is the model's
  EXPECT_EQ(talks.generation.sampling, plain.generation.sampling);
  // and PEFT's form of it has them too
  export_adapter(folder / "talks", convert::load_checkpoint(base_of("llama")), folder / "peft");
  EXPECT_EQ(load_model(base, {}, folder / "peft").tokenizer->chat_template(), "TURNS");
}

TEST(Adapter, LeavesAModelThatItWasMergedInto) {
  const convert::Checkpoint base = convert::load_checkpoint(base_of("qwen2"));
  const test::TemporaryFolder folder;
  for (const char* name : {"qwen2", "qwen2-ia3"}) {
    const convert::Checkpoint sum = with_merged_adapter(base, adapter_of(name),
                                                        convert::MergedAs::float32),
                              back = without_merged_adapter(sum, adapter_of(name),
                                                            convert::MergedAs::float32);
    double most = 0, moved = 0;
    for (const format::TensorView& tensor : base.tensors) {
      const auto numbers = [&](const convert::Checkpoint& of) {
        return weights_of(of).find(tensor.name)->tensor();
      };
      most = std::max(most, apart(numbers(back).to(at::kDouble), numbers(base)));
      moved = std::max(moved, apart(numbers(sum).to(at::kDouble), numbers(base)));
    }
    EXPECT_LT(most, 1e-6) << name;
    EXPECT_GT(moved, 0.01) << name;
  }
}

TEST(Adapter, OfARootIsWrittenAsOne) {
  const convert::Checkpoint base = convert::load_checkpoint(base_of("qwen2"));
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "own");
  write_adapter(
      folder / "own",
      some_overlays(base.spec, {{.name = "mixer.q", .rank = 4, .alpha = 3, .rslora = true}}),
      model_of(base));
  export_adapter(folder / "own", base, folder / "peft");
  const spec::Json json = spec::read_json_file(folder / "peft" / convert::kPeftConfig);
  EXPECT_EQ(json["use_rslora"], true);
  EXPECT_EQ(json["lora_alpha"], 3);
  EXPECT_DOUBLE_EQ(read_adapter(folder / "peft", base).front().scale, 1.5);
}

TEST(Adapter, OfAnotherModelIsRefused) {
  const convert::Checkpoint llama = convert::load_checkpoint(base_of("llama")),
                            gpt2 = convert::load_checkpoint(base_of("gpt2"));
  expect_error(ErrorKind::usage,
               "was trained for another model: module model.layers.0.mlp.down_proj has no place in "
               "this one, "
               "of family gpt2",
               [&] { read_adapter(adapter_of("llama"), gpt2); });
  expect_error(ErrorKind::usage,
               "was trained for another model: lora_A [4, 32] and lora_B [24, 4] of "
               "model.layers.0.self_attn.k_proj, which is [48, 32] here",
               [&] {
                 read_adapter(
                     adapter_of("llama"),
                     convert::load_checkpoint(kGolden / "families/llama/num_key_value_heads"));
               });
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "own");
  write_adapter(folder / "own", some_overlays(llama.spec, {{"mixer.q", 2, 2}}), model_of(llama));
  expect_error(ErrorKind::usage, "was trained for another architecture (differs at",
               [&] { read_adapter(folder / "own", gpt2); });
  expect_error(ErrorKind::file, "is no adapter", [&] { read_adapter(base_of("llama"), llama); });
  expect_error(ErrorKind::file, "is an adapter; expected the model that it was trained on",
               [&] { load_model(adapter_of("llama")); });
}

TEST(Adapter, KeysThatAreNotFollowedAreNamed) {
  const convert::Checkpoint base = convert::load_checkpoint(base_of("llama"));
  const spec::Json config = spec::read_json_file(adapter_of("llama") / convert::kPeftConfig);
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "a");
  fs::copy_file(adapter_of("llama") / convert::kPeftTensors, folder / "a" / convert::kPeftTensors);
  const auto refuses = [&](const char* key, const spec::Json& value, const std::string& message) {
    spec::Json changed = config;
    changed[key] = value;
    folder.write("a/adapter_config.json", changed.dump());
    expect_error(ErrorKind::file, message, [&] { read_adapter(folder / "a", base); });
  };
  for (const char* key : {"use_qalora", "use_bdlora", "arrow_config"})
    refuses(key, true, fmt::format("{} = true is not supported", key));
  for (const char* key : {"layer_replication", "alora_invocation_tokens"})
    refuses(key, {1, 2}, fmt::format("{} = [1,2] is not supported", key));
  refuses("kasa_config", {{"beta", 1}}, "kasa_config = ");
  refuses("a_key_of_tomorrow", 3, "a_key_of_tomorrow = 3 is not supported");
  refuses("peft_type", "LOHA", "peft_type = \"LOHA\"; expected \"LORA\", \"IA3\"");
  refuses("peft_type", "IA3", "is not supported");
  refuses("use_dora", true, "has no lora_magnitude_vector, with use_dora true");
  refuses("r", 5,
          "module model.layers.0.self_attn.k_proj has a product of rank 4; the config (r, "
          "rank_pattern) gives it rank 5");
  refuses("rank_pattern", {{"q_proj", 3}, {"layers.1.mlp.down_proj", 2}, {"up_proj", 3}},
          "mlp.up_proj has a product of rank 4; the config (r, rank_pattern) gives it rank 3");
  refuses("r", "eight", "r is a string; expected a number");
  for (const char* begin : {"pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "PiSSA"})
    refuses("init_lora_weights", begin, "has changed the base model");
  refuses("alpha_pattern", {{"(q_proj", 3}}, "alpha_pattern");
  refuses("lora_alpha", "six", "lora_alpha is a string; expected a number");
}

}  // namespace
}  // namespace tessera::infer::adapter_test
