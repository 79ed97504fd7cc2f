// Loading of real files, and of every golden family folder. The goldens' numbers are tested where
// models run; here: spec, names, shapes and that nothing is copied without need.
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "tessera/base/testing.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert::checkpoint_test {
namespace {

namespace fs = std::filesystem;

TEST(Checkpoint, Llama2cStaysInTheMappedFile) {
  const char* data = std::getenv("TESSERA_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const Checkpoint checkpoint = load_checkpoint(fs::path(data) / "stories260k" / "stories260K.bin");
  EXPECT_EQ(checkpoint.family, "llama");
  EXPECT_EQ(checkpoint.spec.d_model, 64);
  EXPECT_EQ(checkpoint.spec.layers.size(), 5u);
  EXPECT_EQ(checkpoint.notes.size(), 2u);  // the rotary tables
  const auto* owner = checkpoint.tensors.front().owner.get();
  for (const TensorView& tensor : checkpoint.tensors)
    EXPECT_EQ(tensor.owner.get(), owner) << tensor.name;
}

TEST(Checkpoint, SaysWhatAnUnknownFileIs) {
  const test::TemporaryFolder folder;
  using namespace std::string_literals;
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty; expected a model"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1", "is a Git LFS pointer"},
      {"<!DOCTYPE html><html>", "is a web page"},
      {"Once upon a time there was a model", "is no model that tessera reads"},
      {"\x08\0\0\0\0\0\0\0{\"a\": {}}"s, "begins as a safetensors file; expected config.json"},
      {"PK\x03\x04 archive", "12 bytes; expected a zip archive of at least 22"},
      {"\x80\x02}q\0."s, "is a pickle of a dictionary, not a file of torch.save"},
      {R"({"model_type": "llama"})", "is JSON; expected the folder"},
      // a header of llama2.c that fits together, without the numbers it announces
      {"\x04\0\0\0\x08\0\0\0\x01\0\0\0\x02\0\0\0\x02\0\0\0\x05\0\0\0\x04\0\0\0"s,
       "0 bytes after the header of 28; its sizes imply"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string file = folder.write("model.bin", bytes);
    test::expect_error(ErrorKind::file, message, [&] { load_checkpoint(file); });
  }
}

TEST(Checkpoint, ParametersOfAFolderOfOursAreFloats) {
  const test::TemporaryFolder folder;
  const std::string text = R"({"tessera": 1, "arch": "decoder", "vocab": 2, "d_model": 2,
      "layers": [{"mixer": {"type": "attention", "n_heads": 1}}], "head": "tied"})";
  const auto parameters = model::parameters(model::read_model_spec(spec::parse_json(text, "spec")));
  const auto save = [&](DType dtype) {
    const std::vector<std::byte> zeros(1024);
    std::vector<TensorView> tensors;
    for (const spec::ParamDecl& decl : parameters)
      tensors.push_back(
          {decl.name, dtype, decl.shape, {zeros.data(), static_cast<size_t>(4 * decl.elements())}});
    format::write_safetensors(folder / "model.safetensors", tensors, {{"tessera_spec", text}});
  };
  save(DType::f32);
  EXPECT_EQ(load_checkpoint(folder.path()).tensors.size(), parameters.size());
  save(DType::i32);
  test::expect_error(ErrorKind::file,
                     "tensor \"embed.token.weight\" has type i32; expected a floating-point type",
                     [&] { load_checkpoint(folder.path()); });
}

// Before the weights of a decoder are there, its config says all of its spec.
TEST(Checkpoint, AConfigAloneGivesTheSpec) {
  for (const char* family :
       {"llama", "qwen2", "qwen3_next", "gemma2", "mixtral", "deepseek_v2", "gpt2", "mamba2"}) {
    const fs::path base = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family / "base";
    const Checkpoint planned = load_config(base / "config.json");
    EXPECT_EQ(planned.spec_json, load_checkpoint(base).spec_json) << family;
    EXPECT_EQ(planned.family, family);
    EXPECT_TRUE(planned.tensors.empty());
  }
  // heads of encoders that the weights alone show are left out
  const fs::path vit = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/vit/base";
  Json encoder = load_checkpoint(vit).spec_json;
  encoder.erase("heads");
  encoder["head"] = nullptr;
  EXPECT_EQ(load_config(vit / "config.json").spec_json, encoder);
}

// What lies about under the names that other programs give weights.
TEST(Checkpoint, SaysWhatAFolderWithoutAModelHolds) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "is no model: it has no config.json"},
      {{"config.json"},
       "has config.json and no weights; expected model.safetensors or pytorch_model.bin"},
      {{"config.json", "pytorch_model.bin"}, "begins neither as a zip archive nor as a pickle"},
      {{"config.json", "lightning.ckpt"},
       "\"lightning.ckpt\", weights of PyTorch under another name"},
      {{"config.json", "model.safetensors.partial"},
       "an incomplete file of a download or a conversion"},
      {{"config.json", "weights.safetensors"}, "weights under another name"},
      {{"model-Q4_K_M.gguf"}, "a GGUF file; expected the path of that file"},
      {{"a.Q4_K_M.gguf", "b.Q8_0.gguf"},
       "holds 2 GGUF files; expected the path of one: \"a.Q4_K_M.gguf\", \"b.Q8_0.gguf\""},
      {{"adapter_config.json", "adapter_model.safetensors"}, "is an adapter"},
      {{"config.json", "tf_model.h5"}, "weights of another library"},
  };
  for (const auto& [names, message] : cases) {
    const test::TemporaryFolder folder;
    for (const std::string& name : names) folder.write(name, R"({"model_type": "llama"})");
    test::expect_error(ErrorKind::file, message, [&] { load_checkpoint(folder.path()); });
  }
  const test::TemporaryFolder folder;
  folder.write("config.json", R"({"model_type": "llama"})");
  folder.write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:1");
  test::expect_error(ErrorKind::file, "git lfs pull", [&] { load_checkpoint(folder.path()); });
}

// A tool that rewrites a file often drops its metadata.
TEST(Checkpoint, TensorsWithoutTheirSpecAreReadByOneThatIsGiven) {
  const test::TemporaryFolder folder;
  const std::string text = R"({"tessera": 1, "arch": "decoder", "vocab": 2, "d_model": 2,
      "layers": [{"mixer": {"type": "attention", "n_heads": 1}}], "head": "tied"})";
  const model::ModelSpec model = model::read_model_spec(spec::parse_json(text, "spec"));
  const std::vector<std::byte> zeros(1024);
  std::vector<TensorView> tensors;
  for (const spec::ParamDecl& decl : model::parameters(model))
    tensors.push_back({decl.name,
                       DType::f32,
                       decl.shape,
                       {zeros.data(), static_cast<size_t>(4 * decl.elements())}});
  const auto path = folder.path() / "model";
  fs::create_directories(path);
  format::write_safetensors(path / "model.safetensors", tensors, {});
  test::expect_error(ErrorKind::file, "no \"tessera_spec\" in its metadata",
                     [&] { load_checkpoint(path); });
  test::expect_error(ErrorKind::file, "--spec FILE", [&] { load_checkpoint(path); });
  folder.write("model/spec.json", text);
  test::expect_error(ErrorKind::file, "--spec " + (path / "spec.json").string(),
                     [&] { load_checkpoint(path); });
  LoadOptions options;
  options.spec = path / "spec.json";
  const Checkpoint checkpoint = load_checkpoint(path, options);
  EXPECT_EQ(checkpoint.tensors.size(), tensors.size());
  EXPECT_EQ(checkpoint.spec_json, model::resolve(model));
  EXPECT_EQ(load_checkpoint(path / "model.safetensors", options).spec_json, checkpoint.spec_json);
  // a spec of another shape, and one that the file has already
  options.spec =
      folder.write("other.json", R"({"tessera": 1, "arch": "decoder", "vocab": 3, "d_model": 2,
      "layers": [{"mixer": {"type": "attention", "n_heads": 1}}], "head": "tied"})");
  test::expect_error(ErrorKind::file, "has shape", [&] { load_checkpoint(path, options); });
  format::write_safetensors(path / "model.safetensors", tensors, {{"tessera_spec", text}});
  test::expect_error(ErrorKind::usage, "has a spec of its own",
                     [&] { load_checkpoint(path, options); });
}

// --- configs ------------------------------------------------------------------------------------

Json object_of(int members) {
  Json object = Json::object();
  auto& list = static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>());
  for (int i = 0; i < members; ++i) list.emplace_back("k" + std::to_string(i), i);
  return object;
}

/// A folder of a golden model with tied matrices, with other tensors.
fs::path tied_folder(const test::TemporaryFolder& folder,
                     const std::string& family,
                     const std::function<void(std::vector<TensorView>&)>& change) {
  const fs::path golden =
      fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family / "tie_word_embeddings";
  fs::create_directories(folder / "model");
  fs::copy_file(golden / "config.json", folder / "model/config.json",
                fs::copy_options::overwrite_existing);
  const format::TensorFile file = format::open_safetensors(golden / "model.safetensors");
  std::vector<TensorView> tensors = file.tensors();
  change(tensors);
  format::write_safetensors(folder / "model/model.safetensors", tensors, {});
  return folder / "model";
}

const TensorView& named(const std::vector<TensorView>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const TensorView& tensor) { return tensor.name == name; });
}

// transformers 5.23, PreTrainedModel.tie_weights: differing matrices that are both in the
// checkpoint are not tied, and of two names the file may hold either
TEST(Checkpoint, TiedMatricesOfAFileThatDifferAreBothKept) {
  const test::TemporaryFolder folder;
  for (const bool differ : {false, true}) {
    const Checkpoint loaded =
        load_checkpoint(tied_folder(folder, "llama", [&](std::vector<TensorView>& tensors) {
          TensorView head = named(tensors, "model.embed_tokens.weight");
          if (differ) head = mapped(head, [](float x) { return x + 1; });
          head.name = "lm_head.weight";
          tensors.push_back(head);
        }));
    EXPECT_EQ(loaded.spec_json["head"]["type"], differ ? "linear" : "tied");
    EXPECT_EQ(loaded.remarks.size(), differ ? 1u : 0u);
    if (!differ) continue;
    const TensorView &table = loaded.tensor("embed.token.weight"),
                     &head = loaded.tensor("head.weight");
    EXPECT_TRUE(equal_values(mapped(table, [](float x) { return x + 1; }), head));
  }
}

TEST(Checkpoint, OfTiedMatricesEitherNameIsEnough) {
  const test::TemporaryFolder folder;
  const Checkpoint loaded =
      load_checkpoint(tied_folder(folder, "llama", [](std::vector<TensorView>& tensors) {
        for (TensorView& tensor : tensors)
          if (tensor.name == "model.embed_tokens.weight") tensor.name = "lm_head.weight";
      }));
  EXPECT_EQ(loaded.spec_json["head"]["type"], "tied");
  EXPECT_EQ(loaded.tensor("embed.token.weight").shape, (std::vector<int64_t>{64, 32}));
}

TEST(ForeignConfig, ObjectsHaveABound) {
  EXPECT_EQ(parse_hf_config(object_of(30'000).dump(), "config").size(), 30'000u);
  const Json inside = {{"id2label", Json::array({object_of(30'001)})}};
  for (const std::string& text : {object_of(30'001).dump(), inside.dump()})
    test::expect_error(ErrorKind::file, "an object of 30001 members; expected at most 30000",
                       [&] { parse_hf_config(text, "config"); });
}

TEST(ForeignConfig, GgufHoldsNumbersAndText) {
  using format::GgufValue;
  const auto config = [](GgufValue value) {
    std::vector<format::GgufEntry> entries;
    entries.push_back({"general.architecture", GgufValue::string("a")});
    entries.push_back({"a.key", std::move(value)});
    return gguf_config(format::GgufMetadata("file", std::move(entries)), "file");
  };
  EXPECT_EQ(config(GgufValue::number(0.5f))["key"], 0.5);
  test::expect_error(ErrorKind::file, "\"a.key\" is NaN; expected a number",
                     [&] { config(GgufValue::number(std::nanf(""))); });
  test::expect_error(ErrorKind::file, "metadata key \"a.key\" is", [&] {
    config(GgufValue::strings(std::vector<std::string>{"x", "\xff"}));
  });
}

// a run keeps its tokenizer under the name that the recipe had for it
TEST(Tokenizers, OfAnotherNameAreThoseThatTheWeightsName) {
  const test::TemporaryFolder folder;
  folder.write("run/mine.json",
               R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  format::write_safetensors(folder / "run/model.safetensors", {},
                            {{"tessera_tokenizer", "mine.json"}});
  EXPECT_TRUE(holds_tokenizer(folder / "run"));
  EXPECT_EQ(find_tokenizer(folder / "run").vocab_size(), 2);
  std::filesystem::create_directories(folder / "copy");
  copy_tokenizer(folder / "run", folder / "copy");
  EXPECT_EQ(find_tokenizer(folder / "copy").vocab_size(), 2);
  folder.write("none/config.json", "{}");
  EXPECT_FALSE(holds_tokenizer(folder / "none"));
}

// a fine-tuned or converted model keeps the templates that its tokenizer reads
TEST(Tokenizers, AllCompanionsAreCopied) {
  const test::TemporaryFolder folder;
  folder.write("from/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
  folder.write("from/chat_template.json", R"({"chat_template": "x"})");
  folder.write("from/additional_chat_templates/tool_use.jinja", "y");
  copy_tokenizer_files(folder / "from", folder / "to");
  for (const char* name :
       {"vocab.txt", "chat_template.json", "additional_chat_templates/tool_use.jinja"})
    EXPECT_TRUE(std::filesystem::exists(folder / "to" / name)) << name;
  EXPECT_EQ(text::tokenizer_files_in(folder / "from").size(), 3u);
  EXPECT_EQ(find_tokenizer(folder / "to").tool_template(), "y");
}

}  // namespace
}  // namespace tessera::convert::checkpoint_test
