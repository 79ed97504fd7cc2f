// What write_hf_folder() puts beside the weights, so that transformers opens the folder and its
// generate() ends a text: the keys of LlamaForCausalLM saved by save_pretrained() of transformers
// 5.24. tools/golden/hf_folders_check.py opens such folders with transformers itself.
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/family.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/rounded.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/gguf.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/test_support.h"
#include "tessera/kernels/weights/quantize.h"

namespace tessera::convert::hf_folder_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

fs::path golden(const std::string& family) {
  return fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family;
}

Json json_of(const fs::path& file) {
  return parse_hf_config(read_text_file(file), file.string());
}

/// llama's base case as a GGUF file; `entries` replace or join its metadata.
Checkpoint gguf_base(const TemporaryFolder& folder, std::vector<format::GgufEntry> entries = {}) {
  const format::GgufFile base = format::open_gguf(golden("llama") / "gguf/base.gguf");
  for (const format::GgufEntry& entry : base.metadata.entries())
    if (std::none_of(entries.begin(), entries.end(),
                     [&](const auto& other) { return other.key == entry.key; }))
      entries.push_back(entry);
  format::write_gguf(folder / "model.gguf", entries, base.tensors.tensors());
  return load_checkpoint(folder / "model.gguf");
}

void expect_ids(const fs::path& folder, const Json& eos) {
  for (const char* name : {"config.json", "generation_config.json"}) {
    const Json config = json_of(folder / name);
    EXPECT_EQ(config.value("bos_token_id", Json()), Json(1)) << name;
    EXPECT_EQ(config.value("eos_token_id", Json()), eos) << name;
    EXPECT_EQ(config.value("pad_token_id", Json()), Json(0)) << name;
  }
}

// Numbers of a matrix as the type holds them, said in the card.
TEST(HfFolder, AllWeightsHaveTheTypeThatIsAskedFor) {
  const std::tuple<DType, const char*, double> types[] = {
      {DType::f32, "float32", 0}, {DType::bf16, "bfloat16", 4e-3}, {DType::f16, "float16", 5e-4}};
  const Checkpoint source = load_checkpoint(golden("llama") / "base");
  const format::TensorFile original =
      format::open_safetensors(golden("llama") / "base/model.safetensors");
  for (const auto& [dtype, name, error] : types) {
    SCOPED_TRACE(name);
    const TemporaryFolder out;
    HfOptions options;
    options.dtype = dtype;
    write_hf_folder(source, out.path(), options);
    EXPECT_EQ(json_of(out / "config.json").at("dtype"), name);
    const format::TensorFile written = format::open_safetensors(out / "model.safetensors");
    for (const TensorView& tensor : written.tensors()) {
      EXPECT_EQ(tensor.dtype, dtype) << tensor.name;
      const TensorView wide = as_float32(tensor), exact = original.at(tensor.name);
      for (size_t i = 0; i < exact.data.size() / sizeof(float); ++i) {
        float is, was;
        std::memcpy(&is, wide.data.data() + i * sizeof(float), sizeof(float));
        std::memcpy(&was, exact.data.data() + i * sizeof(float), sizeof(float));
        EXPECT_NEAR(is, was, std::abs(was) * error + (dtype == DType::f16 ? 3e-8 : 0))
            << tensor.name;
      }
    }
    const std::string card = read_text_file(out / "README.md");
    EXPECT_THAT(card, HasSubstr(std::string("- Weights: ") + name));
    EXPECT_EQ(card.find("## Measured error of the weights") != card.npos, dtype != DType::f32)
        << card;
  }
}

TEST(HfFolder, NumbersBeyondFloat16AreRefused) {
  const std::vector<float> numbers = {1.0F, 65519.0F, -70000.0F};
  const TensorView tensor{"w", DType::f32, {3}, std::as_bytes(std::span(numbers))};
  test::expect_error(ErrorKind::usage, "tensor \"w\" holds -70000, which f16 cannot hold",
                     [&] { rounded_to(tensor, DType::f16); });
  EXPECT_EQ(rounded_to(tensor, DType::bf16).dtype, DType::bf16);
}

TEST(HfFolder, ShardsHaveAtMostTheSizeThatIsAskedFor) {
  const TemporaryFolder out;
  HfOptions options;
  options.max_shard_bytes = 10'000;
  write_hf_folder(load_checkpoint(golden("llama") / "base"), out.path(), options);
  size_t n = 0;
  for (const std::string& name : out.names())
    if (name.ends_with(".safetensors")) {
      ++n;
      int64_t bytes = 0;
      const format::TensorFile shard = format::open_safetensors(out / name);
      for (const TensorView& tensor : shard.tensors()) bytes += std::ssize(tensor.data);
      EXPECT_LE(bytes, 10'000) << name;
    }
  EXPECT_GT(n, 1u);
  EXPECT_TRUE(fs::exists(out / "model.safetensors.index.json"));
}

TEST(HfFolder, TheCardCarriesTheLicenceOver) {
  const TemporaryFolder source, out;
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(golden("llama") / "base" / name, source / name);
  source.write(
      "README.md",
      "---\nlicense: other\nlicense_name: quill\nlanguage:\n- en\n- de\nmodel-index:\n- name: x\n"
      "base_model: org/base\n---\n# Text with license: mit\n");
  write_hf_folder(load_checkpoint(source.path()), out.path());
  const std::string card = read_text_file(out / "README.md");
  EXPECT_TRUE(card.starts_with(
      "---\nbase_model: org/base\nlicense: other\nlicense_name: quill\nlanguage:\n- en\n- de\n"
      "library_name: transformers\n---\n"))
      << card;
  EXPECT_EQ(card.find("mit"), card.npos);
  // one that is there stays
  out.write("README.md", "mine");
  write_hf_folder(load_checkpoint(source.path()), out.path());
  EXPECT_EQ(read_text_file(out / "README.md"), "mine");
  // of a GGUF file
  const TemporaryFolder scratch;
  const Checkpoint gguf =
      gguf_base(scratch, {{"general.license", format::GgufValue::string("apache-2.0")},
                          {"general.name", format::GgufValue::string("Quill")}});
  write_hf_folder(gguf, scratch / "hf");
  EXPECT_THAT(read_text_file(scratch / "hf/README.md"),
              AllOf(HasSubstr("license: \"apache-2.0\"\n"), HasSubstr("# Quill\n")));
}

TensorView q8_of(const TensorView& tensor) {
  const auto count = format::element_count(tensor.shape);
  std::vector<float> numbers(static_cast<size_t>(count));
  std::memcpy(numbers.data(), tensor.data.data(), numbers.size() * sizeof(float));
  auto bytes = std::make_shared<std::vector<std::byte>>(
      static_cast<size_t>(storage_bytes(DType::q8_0, count)));
  kernels::quantize(DType::q8_0, numbers.data(), count, bytes->data());
  return {tensor.name, DType::q8_0, tensor.shape, *bytes, bytes};
}

// The error of a quantization, against sums over the written numbers.
TEST(HfFolder, TheCardHasTheErrorOfAQuantization) {
  const TemporaryFolder scratch;
  const Checkpoint exact = load_checkpoint(golden("llama") / "base");
  const format::GgufFile base = format::open_gguf(golden("llama") / "gguf/base.gguf");
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : base.tensors.tensors())
    tensors.push_back(tensor.name.find("ffn_up") == std::string::npos ? tensor : q8_of(tensor));
  format::write_gguf(scratch / "q8.gguf", base.metadata.entries(), tensors);
  const Checkpoint quantized = load_checkpoint(scratch / "q8.gguf");
  write_hf_folder(quantized, scratch / "alone");
  EXPECT_THAT(
      read_text_file(scratch / "alone/README.md"),
      AllOf(HasSubstr("- Quantized where they come from: q8_0 ("),
            HasSubstr("the error of that was not measured"), Not(HasSubstr("## Measured error"))));
  HfOptions options;
  options.reference = &exact;
  write_hf_folder(quantized, scratch / "measured", options);
  const std::string card = read_text_file(scratch / "measured/README.md");
  EXPECT_THAT(card, Not(HasSubstr("not measured")));
  const format::TensorFile written =
                               format::open_safetensors(scratch / "measured/model.safetensors"),
                           original =
                               format::open_safetensors(golden("llama") / "base/model.safetensors");
  double squares = 0, errors = 0, largest = 0;
  int64_t numbers = 0;
  for (const TensorView& tensor : written.tensors()) {
    if (tensor.name.find("mlp.up_proj") == std::string::npos) continue;
    for (size_t i = 0; i < tensor.data.size() / sizeof(float); ++i, ++numbers) {
      float is, was;
      std::memcpy(&is, tensor.data.data() + i * sizeof(float), sizeof(float));
      std::memcpy(&was, original.at(tensor.name).data.data() + i * sizeof(float), sizeof(float));
      squares += was * static_cast<double>(was);
      errors += (is - was) * static_cast<double>(is - was);
      largest = std::max(largest, std::abs(static_cast<double>(is) - was));
    }
  }
  EXPECT_GT(errors, 0);
  EXPECT_THAT(card, HasSubstr(fmt::format("| `model.layers.*.mlp.up_proj.weight` | {} | {:.2e} | "
                                          "{:.2e} |\n",
                                          numbers, std::sqrt(errors / squares), largest)));
  EXPECT_THAT(card, HasSubstr("| `model.layers.*.mlp.down_proj.weight` | "));
  EXPECT_THAT(card, HasSubstr("\n| all | "));
  const Checkpoint other = load_checkpoint(golden("llama") / "num_key_value_heads");
  options.reference = &other;
  test::expect_error(ErrorKind::usage, "k_proj.weight\" has shape [",
                     [&] { write_hf_folder(quantized, scratch / "other", options); });
  EXPECT_FALSE(fs::exists(scratch / "other"));
}

TEST(HfFolder, AGgufFileKeepsItsSpecialTokens) {
  const TemporaryFolder scratch;
  const fs::path out = scratch / "hf";
  EXPECT_THAT(write_hf_folder(gguf_base(scratch), out), IsEmpty());
  expect_ids(out, 2);
  const Json config = json_of(out / "config.json");
  EXPECT_EQ(config.at("architectures"), Json({"LlamaForCausalLM"}));
  EXPECT_EQ(config.at("dtype"), "float32");
  const Json tokenizer = json_of(out / "tokenizer_config.json");
  EXPECT_EQ(tokenizer.at("eos_token"), "</s>");
  EXPECT_EQ(tokenizer.at("bos_token"), "<s>");
  EXPECT_TRUE(fs::exists(out / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(out / "tokenizer.gguf"));
  // by way of a folder of ours
  write_tessera_folder(gguf_base(scratch), scratch / "ours");
  copy_tokenizer(scratch / "model.gguf", scratch / "ours");
  EXPECT_THAT(write_hf_folder(load_checkpoint(scratch / "ours"), scratch / "again"), IsEmpty());
  expect_ids(scratch / "again", 2);
}

TEST(HfFolder, FurtherEndsOfAGgufFileAreAList) {
  const TemporaryFolder scratch;
  write_hf_folder(
      gguf_base(scratch,
                {{"tokenizer.ggml.eot_token_id", format::GgufValue::number(uint32_t{5})},
                 {"tokenizer.ggml.eom_token_id", format::GgufValue::number(uint32_t{99})}}),
      scratch / "hf");
  expect_ids(scratch / "hf", {2, 5});  // 99 is behind the vocabulary
}

TEST(HfFolder, WhatTheSourceSaysOfGenerationStays) {
  const TemporaryFolder scratch;
  const fs::path base = golden("llama") / "base", from = scratch / "from";
  fs::create_directories(from);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(base / name, from / name);
  scratch.write("from/generation_config.json", R"({"eos_token_id": [2, 7], "temperature": 0.6})");
  write_hf_folder(gguf_base(scratch), scratch / "tokens");
  fs::copy_file(scratch / "tokens/tokenizer.json", from / "tokenizer.json");
  write_hf_folder(load_checkpoint(from), scratch / "hf");
  EXPECT_EQ(json_of(scratch / "hf/generation_config.json").at("temperature"), Json(0.6));
  EXPECT_EQ(json_of(scratch / "hf/generation_config.json").at("eos_token_id"), Json({2, 7}));
  EXPECT_EQ(json_of(scratch / "hf/config.json").at("eos_token_id"), Json(2));
  // and by way of a folder of ours
  write_tessera_folder(load_checkpoint(from), scratch / "ours");
  write_hf_folder(load_checkpoint(scratch / "ours"), scratch / "again");
  EXPECT_EQ(json_of(scratch / "again/generation_config.json").at("temperature"), Json(0.6));
}

// float32 weights under "torch_dtype": "bfloat16" would be rounded by whoever opens the folder
TEST(HfFolder, TheConfigNamesTheTypeOfTheWeights) {
  const TemporaryFolder scratch;
  Checkpoint checkpoint = load_checkpoint(golden("llama") / "base");
  checkpoint.foreign_config.erase("dtype");
  checkpoint.foreign_config["torch_dtype"] = "bfloat16";
  write_hf_folder(checkpoint, scratch / "hf");
  const Json config = json_of(scratch / "hf/config.json");
  EXPECT_EQ(config.at("torch_dtype"), "float32");
  EXPECT_FALSE(config.contains("dtype"));
}

// transformers' packed layers compute in the type of the config, which is that of the other tensors
TEST(HfFolder, PackedMatricesStayAndTheConfigNamesTheFloats) {
  const TemporaryFolder out;
  Checkpoint packed = load_checkpoint(golden("bitnet") / "offline");
  for (TensorView& tensor : packed.tensors)
    if (tensor.dtype == DType::f32) tensor = rounded_to(tensor, DType::bf16);
  for (const std::string& line : write_hf_folder(packed, out.path(), {}))
    EXPECT_THAT(line, Not(HasSubstr("written as float32")));
  EXPECT_EQ(json_of(out / "config.json").at("dtype"), "bfloat16");
}

TEST(HfFolder, EveryFamilyNamesTheClassThatOpensIt) {
  FamilySet families = FamilySet::load();
  for (const std::string& name : families.names()) {
    const auto& dialects = families.named(name).dialects;
    if (!dialects.contains("hf") || dialects.at("hf").write == nullptr) continue;
    // formats without a type have no class
    if (!json_of(golden(name) / "base/config.json").contains("model_type")) continue;
    const TemporaryFolder scratch;
    write_hf_folder(load_checkpoint(golden(name) / "base"), scratch.path());
    const Json config = json_of(scratch / "config.json");
    ASSERT_TRUE(config.contains("architectures")) << name;
    EXPECT_EQ(config["architectures"].size(), 1u) << name;
    EXPECT_TRUE(config.contains("dtype") || config.contains("torch_dtype")) << name;
    EXPECT_TRUE(config.contains("model_type")) << name;
  }
}

TEST(HfFolder, BytesBecomeATokenizerOfBytes) {
  const TemporaryFolder scratch;
  EXPECT_EQ(copy_tokenizer_to_hf("bytes", scratch.path()), "");
  const text::Tokenizer tokenizer = find_tokenizer(scratch.path());
  const std::string text = "A \u00fc\n\t'll 12  \u4f60";
  std::vector<int32_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  EXPECT_EQ(tokenizer.encode(text), bytes);
  EXPECT_EQ(tokenizer.decode(bytes), text);
  EXPECT_EQ(tokenizer.vocab_size(), 256);
}

TEST(HfFolder, TokenScoresBecomeATokenizerOfTheirs) {
  const TemporaryFolder scratch;
  format::test::ByteString file;
  file.number(int32_t{8});
  const auto token = [&](float score, const std::string& text) {
    file.number(score).number(static_cast<int32_t>(text.size())).raw(text);
  };
  for (const char* special : {"<unk>", "\n<s>\n", "\n</s>\n"}) token(0, special);
  for (int byte = 0; byte < 256; ++byte) token(0, fmt::format("<0x{:02X}>", byte));
  float score = 0;
  for (const char* piece : {" t", "he", " the", "a", "e", "h", "t", " ", "n"})
    token(--score, piece);
  scratch.write("scores/tokenizer.bin", file.text());
  EXPECT_EQ(copy_tokenizer_to_hf(scratch / "scores", scratch.path()), "");
  EXPECT_FALSE(fs::exists(scratch / "tokenizer.bin"));
  const text::Tokenizer tokenizer = find_tokenizer(scratch.path()),
                        wanted = find_tokenizer(scratch / "scores");
  for (const char* text : {"the then", "a  hen", "\u00fc the\n"})
    EXPECT_EQ(tokenizer.encode(text), wanted.encode(text)) << text;
  EXPECT_EQ(tokenizer.eos(), wanted.eos());
}

TEST(HfFolder, WithoutAFamilyThoseThatFitAreNamed) {
  Checkpoint checkpoint = load_checkpoint(golden("gpt2") / "base");
  checkpoint.family.clear();
  const auto error = [&] {
    try {
      why_not_hf(checkpoint);
    } catch (const Error& refused) {
      EXPECT_EQ(refused.kind(), ErrorKind::usage);
      return std::string(refused.what());
    }
    return std::string();
  };
  const std::string fitting = error();
  EXPECT_THAT(fitting, AllOf(HasSubstr("pass --family with one of"), HasSubstr("gpt2")));
  EXPECT_THAT(fitting, Not(HasSubstr("mamba2")));
  checkpoint.spec = model::read_model_spec(spec::parse_json(R"({"tessera": 1, "arch": "decoder",
      "vocab": 43, "d_model": 32, "layers": [{"mixer": {"type": "hyena", "max_length": 16},
      "ffn": {"type": "glu", "d_hidden": 64}}]})",
                                                            "test"));
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  EXPECT_THAT(error(), HasSubstr("no family's config can describe this spec; --to tessera"));
}

TEST(HfFolder, AHeadThatItsClassLacksIsToldBySpecAlone) {
  Checkpoint checkpoint = load_checkpoint(golden("bert") / "base");
  checkpoint.tensors.clear();
  EXPECT_EQ(why_not_hf(checkpoint), "");
  const auto with_heads = [&](const Json& heads) {
    Json spec = checkpoint.spec_json;
    spec.erase("head");
    spec["heads"] = heads;
    Checkpoint other = checkpoint;
    other.spec = model::read_model_spec(spec);
    other.spec_json = model::resolve(other.spec);
    return why_not_hf(other);
  };
  const Json classifier = {{"type", "classifier"}, {"n_labels", 3}};
  EXPECT_EQ(with_heads({classifier, {{"type", "pooler"}}}), "");
  EXPECT_THAT(
      with_heads({classifier,
                  {{"type", "pooler"}, {"of", "mean"}, {"dense", false}, {"act", "identity"}}}),
      HasSubstr("pooler"));
}

}  // namespace
}  // namespace tessera::convert::hf_folder_test
