#include "tessera/convert/params_folder.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/base64.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/container.h"
#include "tessera/convert/params_testing.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/torch_testing.h"

namespace tessera::convert::params_folder_test {
namespace {

namespace fs = std::filesystem;
using format::test::torch_file_of;
using spec::Json;
using test::expect_error;
using test::TemporaryFolder;

const fs::path kLlama = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/llama/base";

/// Its tensors, with fewer tokens: half of them would be as many as its width, and a half of the
/// output matrix could be rows or columns of it.
std::vector<TensorView> golden_tensors() {
  constexpr int64_t kTokens = 48;
  std::vector<TensorView> tensors =
      format::open_safetensors(kLlama / "model.safetensors").tensors();
  for (TensorView& tensor : tensors)
    if (tensor.name == "model.embed_tokens.weight" || tensor.name == "lm_head.weight") {
      tensor.data = tensor.data.first(tensor.data.size() / static_cast<size_t>(tensor.shape[0]) *
                                      static_cast<size_t>(kTokens));
      tensor.shape[0] = kTokens;
    }
  return tensors;
}

/// The golden Llama in `n` files of Meta's.
struct MetaFolder {
  explicit MetaFolder(int64_t n)
      : config(spec::read_json_file(kLlama / "config.json")),
        tensors(test_params::meta_tensors(golden_tensors(), config.at("head_dim").get<int64_t>())),
        params(test_params::params_of(config)) {
    for (int64_t rank = 0; rank < n; ++rank) write_part(rank, n);
    write_params();
  }
  void write_params() const { folder.write("params.json", params.dump()); }
  void write_part(int64_t rank, int64_t n) const {
    std::vector<TensorView> parts;
    for (const TensorView& tensor : tensors) parts.push_back(test_params::part_of(tensor, rank, n));
    folder.write(fmt::format("consolidated.{:02}.pth", rank), torch_file_of(parts));
  }
  Json config;
  std::vector<TensorView> tensors;
  Json params;
  TemporaryFolder folder;
};

// Written as a Hugging Face folder it is the one that it was made of.
TEST(ParamsFolder, IsTheModelOfItsHuggingFaceFolder) {
  const std::vector<TensorView> original = golden_tensors();
  for (const int64_t n : {1, 2, 4}) {
    SCOPED_TRACE(n);
    const MetaFolder meta(n);
    const Checkpoint checkpoint = load_checkpoint(meta.folder.path());
    const TemporaryFolder hf;
    write_hf_folder(checkpoint, hf.path());
    const format::TensorFile written = format::open_safetensors(hf / "model.safetensors");
    EXPECT_EQ(written.tensors().size(), original.size());
    for (const TensorView& tensor : original) {
      const TensorView& other = written.at(tensor.name);
      EXPECT_EQ(other.shape, tensor.shape) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(other.data, tensor.data)) << tensor.name;
    }
    const Json config = spec::read_json_file(hf / "config.json");
    for (const char* key :
         {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
          "head_dim", "rms_norm_eps", "num_hidden_layers", "tie_word_embeddings"})
      EXPECT_EQ(config.at(key), meta.config.at(key)) << key;
    EXPECT_EQ(config.at("vocab_size"), 48);
    EXPECT_EQ(config.at("rope_parameters").at("rope_theta"), 1000.0);
  }
}

// which the file leaves to whoever knows the release
TEST(ParamsFolder, TheLongestSequenceFollowsFromTheRelease) {
  MetaFolder meta(1);
  const auto longest = [&](const Json& more) {
    meta.params.update(more);
    meta.write_params();
    return load_checkpoint(meta.folder.path()).spec.context;
  };
  EXPECT_EQ(longest({{"rope_theta", 10000}, {"norm_eps", 1e-6}}), 2048);
  EXPECT_EQ(longest({{"norm_eps", 1e-5}}), 4096);
  EXPECT_EQ(longest({{"rope_theta", 500000}}), 8192);
  EXPECT_EQ(longest({{"use_scaled_rope", true}, {"rope_scaling_factor", 8}}), 131072);
}

TEST(ParamsFolder, ScaledRopeIsThatOfLlama3) {
  MetaFolder meta(1);
  meta.params["use_scaled_rope"] = true;
  meta.write_params();
  const auto scaling_of = [](const Checkpoint& checkpoint) {
    return checkpoint.spec_json.at("layers")
        .at(0)
        .at("branches")
        .at(0)
        .at("mixer")
        .at("position")
        .at("scaling");
  };
  const Checkpoint unsaid = load_checkpoint(meta.folder.path());
  const Json scaling = scaling_of(unsaid);
  EXPECT_EQ(scaling.at("type"), "llama3");
  EXPECT_EQ(scaling.at("factor"), 8);
  ASSERT_EQ(unsaid.remarks.size(), 1u);
  EXPECT_NE(unsaid.remarks[0].find("add \"rope_scaling_factor\": 32"), std::string::npos);
  meta.params["rope_scaling_factor"] = 32;
  meta.write_params();
  const Checkpoint said = load_checkpoint(meta.folder.path());
  EXPECT_EQ(scaling_of(said).at("factor"), 32);
  EXPECT_TRUE(said.remarks.empty());
  EXPECT_EQ(scaling.at("original_length"), 8192);
}

TEST(ParamsFolder, WhatDoesNotFitIsNamed) {
  const MetaFolder meta(2);
  const auto expect = [&](const char* message) {
    expect_error(ErrorKind::file, message, [&] { load_checkpoint(meta.folder.path()); });
  };
  // a part that is missing among the others
  fs::rename(meta.folder / "consolidated.01.pth", meta.folder / "consolidated.02.pth");
  expect("holds consolidated.02.pth and no consolidated.01.pth");
  fs::remove(meta.folder / "consolidated.02.pth");
  expect("the config says");  // half of the rows
  // parts of other sizes
  std::vector<TensorView> whole = meta.tensors;
  meta.folder.write("consolidated.01.pth", torch_file_of(whole));
  expect("has shape");
  std::vector<TensorView> more;
  for (const TensorView& tensor : meta.tensors) more.push_back(test_params::part_of(tensor, 1, 2));
  more.push_back(more.front());
  more.back().name = "another";
  meta.folder.write("consolidated.01.pth", torch_file_of(more));
  expect("tensors; ");
  // vectors that differ
  more.pop_back();
  for (TensorView& tensor : more)
    if (tensor.name == "norm.weight")
      tensor = test_params::copy_of(tensor.name, tensor.dtype, tensor.shape,
                                    std::vector<std::byte>(tensor.data.size()));
  meta.folder.write("consolidated.01.pth", torch_file_of(more));
  expect("tensor \"norm.weight\" differs from that of");
}

TEST(ParamsFolder, AWindowIsNotReadOver) {
  MetaFolder meta(1);
  meta.params["sliding_window"] = 4096;
  meta.write_params();
  expect_error(ErrorKind::file, "sliding_window", [&] { load_checkpoint(meta.folder.path()); });
}

TEST(Container, ListsTheTensorsOfEveryFormat) {
  const MetaFolder meta(2);
  EXPECT_EQ(open_container(meta.folder.path()).tensors().size(), meta.tensors.size());
  EXPECT_EQ(open_container(meta.folder / "consolidated.00.pth").tensors().size(),
            meta.tensors.size());
  EXPECT_EQ(open_container(kLlama).tensors().size(), meta.tensors.size());
  EXPECT_EQ(open_container(kLlama / "model.safetensors").tensors().size(), meta.tensors.size());
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";
  EXPECT_FALSE(open_container(golden / "adapters/llama").tensors().empty());
  for (const auto& entry : fs::directory_iterator(golden / "families/llama/gguf"))
    EXPECT_FALSE(open_container(entry.path()).tensors().empty()) << entry.path();
  const TemporaryFolder folder;
  expect_error(ErrorKind::file, "is no model that tessera reads",
               [&] { open_container(folder.write("x", "Once upon a time there was a model")); });
}

}  // namespace
}  // namespace tessera::convert::params_folder_test
