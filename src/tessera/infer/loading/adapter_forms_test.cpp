// Adapters of files that people have: other names of tensors, other containers of the model, blocks
// of quantisers, several adapters of a model with tied matrices.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tessera/base/output_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/peft.h"
#include "tessera/format/torch_testing.h"
#include "tessera/infer/loading/adapter.h"
#include "tessera/infer/loading/adapter_testing.h"
#include "tessera/spec/json.h"

namespace tessera::infer::adapter_test {
namespace {

using format::TensorView;
using spec::Json;
using test::expect_error;

/// An adapter of the goldens with another config or other tensors.
class Changed {
 public:
  explicit Changed(const std::string& name)
      : config(spec::read_json_file(adapter_of(name) / convert::kPeftConfig)),
        tensors_(format::open_safetensors(adapter_of(name) / convert::kPeftTensors)) {}

  fs::path write(const std::function<void(TensorView&)>& change = [](TensorView&) {}) {
    fs::create_directories(folder_ / "a");
    std::vector<TensorView> tensors = tensors_.tensors();
    for (TensorView& tensor : tensors) change(tensor);
    std::erase_if(tensors, [](const TensorView& tensor) { return tensor.name.empty(); });
    tensors.insert(tensors.end(), more.begin(), more.end());
    format::write_safetensors(folder_ / "a" / convert::kPeftTensors, tensors, {});
    folder_.write("a/adapter_config.json", config.dump());
    return folder_ / "a";
  }

  int64_t rows_of(const std::string& tensor) const { return tensors_.at(tensor).shape[0]; }

  Json config;
  std::vector<TensorView> more;  // further tensors

 private:
  format::TensorFile tensors_;
  test::TemporaryFolder folder_;
};

void replace(std::string& name, const std::string& what, const std::string& by) {
  if (const size_t at = name.find(what); at != std::string::npos) name.replace(at, what.size(), by);
}

double error_of(const std::string& name, const fs::path& adapter) {
  const Golden golden(name);
  return apart(logits_of(load_model(base_of(name), {}, adapter).model, golden.ids), golden.with);
}

TEST(PeftNames, OfOtherVersionsAreTheSame) {
  const auto named = [](const std::string& name, const std::string& what, const std::string& by) {
    Changed changed(name);
    return error_of(name,
                    changed.write([&](TensorView& tensor) { replace(tensor.name, what, by); }));
  };
  EXPECT_LT(named("llama", "base_model.model.", ""), kTolerance);
  EXPECT_LT(named("llama", ".weight", ".default.weight"), kTolerance);
  EXPECT_LT(named("qwen2-dora", "magnitude_vector", "magnitude_vector.default.weight"), kTolerance);
  EXPECT_LT(named("qwen2-ia3", "ia3_l", "ia3_l.mine"), kTolerance);
  // a class without a head has one word less before its layers
  EXPECT_LT(named("llama", "model.model.", "model."), kTolerance);
  EXPECT_LT(named("gpt2", "model.transformer.", "model."), kTolerance);
  EXPECT_LT(named("llama-head", "lm_head", "lm_head.modules_to_save.default"), kTolerance);
  EXPECT_LT(named("llama-head", "lm_head", "lm_head.modules_to_save"), kTolerance);
  // transformers 4 and 5
  EXPECT_LT(named("mixtral-packed", "mlp", "block_sparse_moe"), kTolerance);
}

TEST(PeftNames, WithoutAPlaceAreErrors) {
  const auto refuses = [](const std::string& name, const std::string& what, const std::string& by,
                          ErrorKind kind, const std::string& message) {
    Changed changed(name);
    const fs::path folder =
        changed.write([&](TensorView& tensor) { replace(tensor.name, what, by); });
    expect_error(kind, message, [&] { load_model(base_of(name), {}, folder); });
  };
  refuses("llama-head", "lm_head", "value_head", ErrorKind::usage,
          "tensor value_head.weight has no place in this one, of family llama");
  refuses("llama", "layers.1.mlp.up_proj", "layers.7.mlp.up_proj", ErrorKind::usage,
          "module model.layers.7.mlp.up_proj has no place in this one");
  refuses("mixtral-each", "experts.2", "experts.9", ErrorKind::usage, "experts.9.w1 has no place");
  refuses("llama", "lora_A", "lora_C", ErrorKind::file, "has no lora_A; expected both");
  refuses("llama", "lora_A.weight", "lora_A.one.two.weight", ErrorKind::file, "is not supported");
}

// PEFT runs it, with a bias of its own, and cannot merge it
TEST(PeftBiases, OfAProjectionWithoutOneAreRefusedWithTheRemedy) {
  Changed changed("llama");
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.lora_B";
  const std::vector<float> numbers(static_cast<size_t>(changed.rows_of(module + ".weight")), 0.5F);
  changed.config["lora_bias"] = true;
  changed.more = {{module + ".bias",
                   DType::f32,
                   {std::ssize(numbers)},
                   std::as_bytes(std::span(numbers)),
                   nullptr}};
  const fs::path folder = changed.write();
  expect_error(ErrorKind::file, "expected an adapter trained with lora_bias=False",
               [&] { load_model(base_of("llama"), {}, folder); });
}

// PEFT 0.21 makes no module for these and warns of unexpected keys
TEST(PeftTargets, TensorsOutsideOfThemAreErrors) {
  const auto refuses = [](const Json& change, const std::string& message) {
    Changed changed("llama");
    changed.config.update(change);
    const fs::path folder = changed.write();
    expect_error(ErrorKind::file, message, [&] { load_model(base_of("llama"), {}, folder); });
  };
  refuses({{"target_modules", {"q_proj", "k_proj"}}}, "[adapter] tensor without a place: ");
  refuses({{"target_modules", {"q_proj", "k_proj"}}}, "target_modules = [\"q_proj\",\"k_proj\"]");
  refuses({{"target_modules", Json::array()}}, "target_modules = []");
  refuses({{"target_modules", ".*\\.(q|k|v|o)_proj"}}, "target_modules = ");
  refuses({{"target_modules", "q_proj"}}, "target_modules = \"q_proj\"");  // a whole name
  refuses({{"layers_to_transform", {1}}}, "layers.0.");
  refuses({{"layers_to_transform", 0}}, "layers_to_transform = 0");
  refuses({{"layers_to_transform", {0, 1}}, {"layers_pattern", "h"}}, "layers_to_transform = ");
  refuses({{"exclude_modules", {"o_proj"}}}, "exclude_modules = [\"o_proj\"]");
  refuses({{"exclude_modules", ".*down_proj"}}, "exclude_modules = ");
  refuses({{"target_modules", 7}}, "target_modules is 7; expected a list of names or one regular");
}

TEST(PeftTargets, MayBeNamedInManyWays) {
  const auto error = [](const Json& change) {
    Changed changed("llama");
    changed.config.update(change);
    return error_of("llama", changed.write());
  };
  EXPECT_LT(error({{"target_modules", ".*_proj"}}), kTolerance);
  EXPECT_LT(error({{"target_modules", "all-linear"}}), kTolerance);
  EXPECT_LT(error({{"target_modules", "All-Linear"}}), kTolerance);
  EXPECT_LT(error({{"target_modules", nullptr}}), kTolerance);
  EXPECT_LT(error({{"layers_to_transform", {0, 1}}}), kTolerance);
  EXPECT_LT(error({{"layers_to_transform", {0, 1}}, {"layers_pattern", "layers"}}), kTolerance);
  EXPECT_LT(error({{"layers_to_transform", {1, 0}}, {"layers_pattern", {"h", "layers"}}}),
            kTolerance);
  EXPECT_LT(error({{"layers_to_transform", Json::array()}, {"exclude_modules", {"lm_head"}}}),
            kTolerance);
}

TEST(PeftConfigKeys, NullUnknownAndOfTraining) {
  Changed changed("llama");
  changed.config["target_modules"] = nullptr;
  changed.config["a_key_of_tomorrow"] = nullptr;
  changed.config["another"] = Json::object();
  changed.config["eva_config"] = {{"rho", 2.0}};
  changed.config["init_lora_weights"] = "eva";
  EXPECT_LT(error_of("llama", changed.write()), kTolerance);
}

// As PEFT wrote them before safetensors.
TEST(PeftFiles, OfTorchSaveAreTheSame) {
  for (const std::string name : {"llama", "gpt2-dora", "llama-tokens"}) {
    const test::TemporaryFolder folder;
    const format::TensorFile file =
        format::open_safetensors(adapter_of(name) / convert::kPeftTensors);
    folder.write("a/adapter_model.bin", format::test::torch_file_of(file.tensors()));
    fs::copy_file(adapter_of(name) / convert::kPeftConfig, folder / "a" / convert::kPeftConfig);
    EXPECT_LT(error_of(name, folder / "a"), kTolerance) << name;
  }
}

TEST(PeftFiles, WithCodeAreRefused) {
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "a");
  fs::copy_file(adapter_of("llama") / convert::kPeftConfig, folder / "a" / convert::kPeftConfig);
  folder.write("a/adapter_model.bin",
               "\x80\x02"
               "cos\nsystem\n.");
  expect_error(ErrorKind::file, "it names \"os.system\"",
               [&] { load_model(base_of("llama"), {}, folder / "a"); });
}

/// Each expert's A and B as if the parameter were the transposed one.
TEST(PeftExperts, OfTransposedParametersAreRecognisedByTheirShapes) {
  const convert::Checkpoint base = convert::load_checkpoint(base_of("mixtral-packed"));
  const int64_t experts = 4;
  Changed changed("mixtral-packed");
  changed.config["peft_version"] = "0.18.1";
  const format::TensorFile file =
      format::open_safetensors(adapter_of("mixtral-packed") / convert::kPeftTensors);
  const auto numbers = [&](const std::string& name) {
    return tensor_or_undefined(file, name.c_str()).to(at::kFloat);
  };
  const auto turned = [&](TensorView& tensor) {
    if (tensor.name.find("experts") == std::string::npos) return;
    const bool is_a = tensor.name.find("lora_A") != std::string::npos;
    std::string other = tensor.name;
    replace(other, is_a ? "lora_A" : "lora_B", is_a ? "lora_B" : "lora_A");
    const Tensor from = numbers(other);
    // A [E r, in], rows by expert; B [out, r E], columns by rank
    const Tensor to =
        is_a
            ? from.view({from.size(0), -1, experts}).permute({2, 1, 0}).reshape({-1, from.size(0)})
            : from.view({experts, -1, from.size(1)}).permute({2, 1, 0}).reshape({from.size(1), -1});
    const auto kept = std::make_shared<const Tensor>(to.contiguous());
    tensor = {tensor.name,
              DType::f32,
              to.sizes().vec(),
              {static_cast<const std::byte*>(kept->const_data_ptr()),
               static_cast<size_t>(kept->nbytes())},
              kept};
  };
  EXPECT_LT(error_of("mixtral-packed", changed.write(turned)), kTolerance);
  // square ones: by the version, or not at all
  Changed square("gpt_oss-packed");
  EXPECT_LT(error_of("gpt_oss-packed", square.write()), kTolerance);
  square.config["peft_version"] = "0.18.1";
  const fs::path folder = square.write();
  expect_error(ErrorKind::file, "which are square, and PEFT before 0.19.1 turned some of them",
               [&] { load_model(base_of("gpt_oss-packed"), {}, folder); });
}

TEST(PeftTables, ThatAreOneInTheBaseMustBeEqual) {
  Changed changed("llama-tied-both");
  changed.config["modules_to_save"] = nullptr;
  const fs::path folder = changed.write();
  expect_error(ErrorKind::file, "differ, and in this model they are one",
               [&] { load_model(base_of("llama-tied-both"), {}, folder); });
  // PEFT loads a table that it does not list into the base, whose head it is too
  Changed alone("llama-tied-both");
  alone.config["modules_to_save"] = nullptr;
  const fs::path one = alone.write([](TensorView& tensor) {
    if (tensor.name.find("lm_head") != std::string::npos) tensor.name.clear();
  });
  const LoadedModel loaded = load_model(base_of("llama-tied-both"), {}, one);
  EXPECT_EQ(loaded.model.weights().find("head.weight"), nullptr);
}

TEST(PeftTables, ThatAreThereTwiceMustBeEqual) {
  const std::string head = "base_model.model.lm_head.";
  // only the copies that PEFT names by modules_to_save, the adapter's name with them
  Changed copies("llama-grown-both");
  EXPECT_LT(error_of("llama-grown-both", copies.write([&](TensorView& tensor) {
              if (tensor.name == head + "weight") tensor.name.clear();
              replace(tensor.name, "lm_head.modules_to_save", "lm_head.modules_to_save.default");
            })),
            kTolerance);
  const auto refuses = [&](const std::string& reason,
                           const std::function<void(std::string&)>& rename) {
    Changed changed("llama-grown-both");
    const fs::path folder = changed.write([&](TensorView& tensor) { rename(tensor.name); });
    expect_error(ErrorKind::file, reason,
                 [&] { load_model(base_of("llama-grown-both"), {}, folder); });
  };
  refuses("differ; expected one adapter", [&](std::string& name) {
    if (name == head + "modules_to_save.weight") name.clear();
    replace(name, "lm_head.original_module", "lm_head.modules_to_save");
  });
  refuses("has no trained copy; expected base_model.model.lm_head.weight too",
          [&](std::string& name) {
            if (name.starts_with(head) && name != head + "original_module.weight") name.clear();
          });
}

TEST(PeftTables, AreTiedToOthersInSomeFamilies) {
  Changed changed("llama-tied-head");
  const fs::path folder = changed.write([](TensorView& tensor) {
    if (tensor.name.find("lm_head") == std::string::npos) tensor.name.clear();
  });
  expect_error(ErrorKind::usage, "it changes one of several matrices that are tied in family bart",
               [&] { load_model(kGolden / "families/bart/base", {}, folder); });
}

TEST(Adapters, OfAModelWithTiedMatricesMayPartThem) {
  const LoadedModel base = load_model(base_of("llama-tied-embed"));
  Adapters adapters(base, {});
  for (const char* name : {"llama-tied-embed", "llama-tied-lora-head", "llama-tied-tokens"})
    adapters.add(name, adapter_of(name));
  for (const std::string& name : adapters.names()) {
    const Golden golden(name);
    EXPECT_LT(apart(logits_of(adapters.with({name}), golden.ids), golden.with), kTolerance) << name;
    EXPECT_LT(apart(logits_of(adapters.with({}), golden.ids), golden.without), kTolerance);
  }
  // weights that no adapter changes are there once, tied ones that part among them
  const model::Model& model = adapters.with({"llama-tied-lora-head"});
  EXPECT_EQ(model.weights().find("layers.0.mixer.o.weight"),
            base.model.weights().find("layers.0.mixer.o.weight"));
  expect_error(ErrorKind::usage, "has 68 tokens and the model 64",
               [&] { adapters.add("grown", adapter_of("llama-tied-grown")); });
}

TEST(MergedAdapter, LeavesATiedFolderThatTransformersReadsAlike) {
  // what save_pretrained writes after merge_and_unload: the config still says tied
  const test::TemporaryFolder folder;
  const convert::Checkpoint sum = with_merged_adapter(
      convert::load_checkpoint(base_of("llama-tied-embed")), adapter_of("llama-tied-embed"));
  convert::write_hf_folder(sum, folder / "merged");
  Json config = spec::read_json_file(folder / "merged/config.json");
  EXPECT_EQ(config["tie_word_embeddings"], false);
  config["tie_word_embeddings"] = true;
  folder.write("merged/config.json", config.dump());
  const Golden golden("llama-tied-embed");
  const LoadedModel loaded = load_model(folder / "merged");
  EXPECT_LT(apart(logits_of(loaded.model, golden.ids), golden.with), kTolerance);
  ASSERT_EQ(loaded.source.remarks.size(), 1u);
  EXPECT_TRUE(loaded.source.remarks[0].starts_with("the output matrix differs from the token"));
}

// --- a model in blocks ---------------------------------------------------------------------------

convert::Checkpoint in_blocks(convert::Checkpoint base, DType type) {
  const model::Model model = model_of(base);
  for (TensorView& tensor : base.tensors) {
    if (tensor.name.find("layers.") == std::string::npos || tensor.shape.size() != 2 ||
        tensor.shape[1] % 32 != 0)
      continue;
    const auto rounded =
        std::make_shared<const ops::Weight>(model.weights().find(tensor.name)->converted(type));
    tensor = {
        tensor.name,
        type,
        tensor.shape,
        {static_cast<const std::byte*>(rounded->data()), static_cast<size_t>(rounded->bytes())},
        rounded};
  }
  return base;
}

TEST(MergedAdapter, OfBlocksIsRoundedAgainOrFloats) {
  const convert::Checkpoint floats = convert::load_checkpoint(base_of("llama")),
                            base = in_blocks(floats, DType::q8_0);
  const Golden golden("llama");
  const Tensor wanted = logits_of(
      model::with_adapters(model_of(base), read_adapter(adapter_of("llama"), base)), golden.ids);
  EXPECT_LT(apart(wanted, golden.with), 0.2);
  const std::string name = "layers.1.ffn.up.weight";
  const auto merged = [&](convert::MergedAs as) {
    return with_merged_adapter(base, adapter_of("llama"), as);
  };
  const convert::Checkpoint again = merged(convert::MergedAs::own_type),
                            wide = merged(convert::MergedAs::floats);
  EXPECT_EQ(again.tensor(name).dtype, DType::q8_0);
  EXPECT_EQ(wide.tensor(name).dtype, DType::f32);
  // floats are the sum to float32's rounding, blocks to their own
  EXPECT_LT(apart(logits_of(model_of(wide), golden.ids), wanted), kTolerance);
  EXPECT_LT(apart(logits_of(model_of(again), golden.ids), wanted), 0.3);
  ASSERT_EQ(again.remarks.size(), 1u);
  EXPECT_NE(again.remarks[0].find("merged weights are rounded to q8_0 again"), std::string::npos);
  EXPECT_NE(again.remarks[0].find("--float32"), std::string::npos);
  ASSERT_EQ(wide.remarks.size(), 1u);
  EXPECT_NE(wide.remarks[0].find("are f32 in place of q8_0"), std::string::npos);
  // and out again, to the rounding of both
  const convert::Checkpoint back = without_merged_adapter(wide, adapter_of("llama"));
  EXPECT_LT(apart(logits_of(model_of(back), golden.ids), logits_of(model_of(base), golden.ids)),
            kTolerance);
}

// --- one model in two containers -----------------------------------------------------------------

std::vector<model::WeightAdapter> all_products(const model::ModelSpec& spec) {
  std::vector<model::WeightAdapter> overlays =
      model::fresh_overlays(spec, {{.name = "", .rank = 2, .alpha = 2}}, 5);
  const at::NoGradGuard guard;
  for (const model::WeightAdapter& overlay : overlays) {
    const Tensor b = overlay.b->dense_tensor();
    Tensor(b).copy_((at::arange(b.numel(), at::kFloat) * 1.7).sin().reshape(b.sizes()) * 0.3);
  }
  return overlays;
}

class Containers : public ::testing::TestWithParam<std::string> {};

TEST_P(Containers, ShareAdaptersThatWereTrainedForEither) {
  const fs::path folder = kGolden / "families" / GetParam(), hf = folder / "base",
                 gguf = folder / "gguf/base.gguf";
  const Tensor ids = at::arange(1, 9, at::kLong).view({1, 8});
  const test::TemporaryFolder out;
  for (const auto& [from, to] : {std::pair(hf, gguf), std::pair(gguf, hf)}) {
    const LoadedModel trained = load_model(from);
    auto overlays = all_products(trained.source.spec);
    model::add_magnitudes(overlays, trained.model.weights());
    for (model::WeightAdapter& norm : model::whole_weights(trained.model, {"final_norm.weight"})) {
      const at::NoGradGuard guard;
      Tensor(norm.whole->dense_tensor()).mul_(1.5);
      overlays.push_back(std::move(norm));
    }
    const Tensor wanted = logits_of(model::with_adapters(trained.model, overlays), ids);
    ASSERT_GT(apart(wanted, logits_of(trained.model, ids)), 0.01);
    fs::remove_all(out / "a");
    fs::create_directories(out / "a");
    write_adapter(out / "a", overlays, trained.model);
    EXPECT_LT(apart(logits_of(load_model(to, {}, out / "a").model, ids), wanted), 2e-3)
        << from << " to " << to;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    Containers,
    ::testing::Values("llama", "qwen2", "gpt2", "gemma2", "mixtral", "phi3", "cohere", "olmo2"),
    [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::infer::adapter_test
