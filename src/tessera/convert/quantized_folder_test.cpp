// Quantised folders against tests/golden/quantized, which the programs that quantise packed
// themselves: every number bit for bit, and the storage that was chosen; and folders that do not
// hold what their config says.
#include "tessera/convert/quantized_folder.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert::quantized_folder_test {
namespace {

namespace fs = std::filesystem;
using spec::Json;
using test::expect_error;

fs::path golden() {
  return fs::path(TESSERA_SOURCE_DIR) / "tests/golden/quantized";
}

Json json_of(const fs::path& path) {
  return parse_hf_config(read_text_file(path), path.string());
}

TEST(QuantizedFolders, EveryNumberIsThatOfTheProgram) {
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(golden())) {
    SCOPED_TRACE(entry.path().filename().string());
    const format::TensorFile file = format::open_safetensors_folder(entry.path());
    const format::TensorFile expected =
        format::open_safetensors(entry.path() / "expected.safetensors");
    Json config = json_of(entry.path() / "config.json");
    const auto folder = read_quantized_folder(config, "config.json", file);
    ASSERT_TRUE(folder.has_value());
    EXPECT_FALSE(config.contains("quantization_config"));
    const std::string storage = json_of(entry.path() / "case.json").at("storage");
    int compared = 0;
    for (const TensorView& want : expected.tensors()) {
      if (!want.name.ends_with(".weight")) continue;
      SCOPED_TRACE(want.name);
      const TensorView& packed = folder->tensors.at(want.name);
      EXPECT_TRUE(folder->packed.contains(want.name));
      EXPECT_EQ(name_of(packed.dtype), storage);
      const TensorView found = as_float32(packed);
      ASSERT_EQ(found.shape, want.shape);
      EXPECT_EQ(std::memcmp(found.data.data(), want.data.data(), want.data.size()), 0);
      ++compared;
    }
    EXPECT_GE(compared, 3);
    const bool floats = storage == "f32";
    bool said = false;
    for (const std::string& remark : folder->remarks)
      said = said || remark.find("float32") != std::string::npos;
    EXPECT_EQ(said, floats) << "what is held in float32 is said";
    ++cases;
  }
  EXPECT_GE(cases, 20);
}

TEST(QuantizedFolders, ActOrderIsHeldByGroups) {
  for (const char* name : {"gptq4_act_order", "packed4_act_order"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = load_checkpoint(golden() / name);
    EXPECT_TRUE(checkpoint.remarks.empty());
    int ordered = 0;
    for (const TensorView& tensor : checkpoint.tensors) {
      if (tensor.dtype != DType::q4_0) continue;
      ASSERT_NE(tensor.columns, nullptr) << tensor.name;
      EXPECT_EQ(std::ssize(*tensor.columns), tensor.shape.back());
      // 4.5 bits a number
      EXPECT_EQ(std::ssize(tensor.data) * 16, tensor.shape[0] * tensor.shape[1] * 9);
      ++ordered;
    }
    EXPECT_EQ(ordered, 7);
  }
}

TEST(QuantizedFolders, ExpertsAreStackedInTheirBlocks) {
  const Checkpoint checkpoint = load_checkpoint(golden() / "awq_experts");
  int stacks = 0;
  for (const TensorView& tensor : checkpoint.tensors) {
    if (tensor.shape.size() != 3) continue;
    EXPECT_EQ(tensor.dtype, DType::scaled_u4) << tensor.name;
    ++stacks;
  }
  EXPECT_EQ(stacks, 3);
  EXPECT_TRUE(checkpoint.remarks.empty());
}

TEST(QuantizedFolders, WhatHasNoOtherFormIsWrittenAsFloats) {
  const test::TemporaryFolder scratch;
  for (const char* name : {"awq", "packed4", "gptq4_act_order"}) {
    const Checkpoint checkpoint = load_checkpoint(golden() / name);
    write_hf_folder(checkpoint, scratch / name);
    const Checkpoint plain = load_checkpoint(scratch / name);
    ASSERT_EQ(plain.tensors.size(), checkpoint.tensors.size());
    for (size_t i = 0; i < plain.tensors.size(); ++i) {
      EXPECT_FALSE(is_block_type(plain.tensors[i].dtype));
      EXPECT_TRUE(equal_values(plain.tensors[i], checkpoint.tensors[i])) << plain.tensors[i].name;
    }
  }
}

/// A golden folder with changes.
class Changed {
 public:
  explicit Changed(const std::string& name)
      : config_(json_of(golden() / name / "config.json")),
        file_(format::open_safetensors_folder(golden() / name)),
        tensors_(file_.tensors()) {}

  Json& settings() { return config_["quantization_config"]; }
  TensorView& tensor(const std::string& name) {
    for (TensorView& t : tensors_)
      if (t.name == name) return t;
    throw std::out_of_range(name);
  }
  void drop(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorView& t) { return t.name == name; });
  }
  /// Throws what reading it throws.
  void read() {
    const format::TensorFile file("safetensors", "model.safetensors", tensors_, {},
                                  file_.unsupported());
    read_quantized_folder(config_, "config.json", file);
  }

 private:
  Json config_;
  format::TensorFile file_;
  std::vector<TensorView> tensors_;
};

const std::string kModule = "model.layers.0.self_attn.k_proj";

TEST(QuantizedFolders, ConfigsThatAreNotSupportedAreRefusedByTheirKey) {
  const auto refuses = [](const char* name, const char* part, const auto& change) {
    SCOPED_TRACE(part);
    Changed folder(name);
    change(folder.settings());
    expect_error(ErrorKind::file, part, [&] { folder.read(); });
  };
  refuses("awq", "quant_method = \"bitsandbytes\"",
          [](Json& s) { s["quant_method"] = "bitsandbytes"; });
  refuses("awq", "quant_method", [](Json& s) { s["quant_method"] = 4; });
  refuses("awq", "quantization_config] found an array", [](Json& s) { s = Json::array(); });
  refuses("awq", "bits = 3", [](Json& s) { s["bits"] = 3; });
  refuses("awq", "version = \"gemv\"", [](Json& s) { s["version"] = "gemv"; });
  refuses("awq", "zero_point = false", [](Json& s) { s["zero_point"] = false; });
  refuses("awq", "group_size = 0", [](Json& s) { s["group_size"] = 0; });
  refuses("awq", "group_size = \"32\"", [](Json& s) { s["group_size"] = "32"; });
  refuses("gptq4", "pack_dtype = \"int16\"", [](Json& s) { s["pack_dtype"] = "int16"; });
  refuses("gptq4", "format = \"gptq_p\"", [](Json& s) { s["format"] = "gptq_p"; });
  refuses("gptq4", "bits = 3", [](Json& s) { s["bits"] = 3; });
  refuses("gptq4", "bits = null", [](Json& s) { s.erase("bits"); });
  refuses("gptq4", "checkpoint_format = \"marlin\"",
          [](Json& s) { s["checkpoint_format"] = "marlin"; });
  refuses("fp8_inverse", "fmt = \"e5m2\"", [](Json& s) { s["fmt"] = "e5m2"; });
  refuses("fp8_inverse", "weight_block_size = [32,0]", [](Json& s) {
    s["weight_block_size"] = {32, 0};
  });
  refuses("packed4", "format = \"nvfp4-pack-quantized\"",
          [](Json& s) { s["format"] = "nvfp4-pack-quantized"; });
  refuses("packed4", "config_groups is missing", [](Json& s) { s.erase("config_groups"); });
  refuses("packed4", "num_bits = 2",
          [](Json& s) { s["config_groups"]["group_0"]["weights"]["num_bits"] = 2; });
  refuses("packed4", "type = \"float\"",
          [](Json& s) { s["config_groups"]["group_0"]["weights"]["type"] = "float"; });
  refuses("packed4", "transform_config", [](Json& s) {
    s["transform_config"] = {{"config_groups", {{"R1", 1}}}};
  });
  refuses("packed4", "sparsity_config", [](Json& s) {
    s["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  });
}

TEST(QuantizedFolders, TensorsThatDoNotFitAreRefusedByTheirName) {
  const auto refuses = [](const char* name, const char* part, const auto& change) {
    SCOPED_TRACE(part);
    Changed folder(name);
    change(folder);
    expect_error(ErrorKind::file, part, [&] { folder.read(); });
  };
  // the config says other groups or bits than the tensors have
  refuses("awq", "scales\" has shape [3, 64]; group_size says [2, 64]",
          [](Changed& f) { f.settings()["group_size"] = 64; });
  refuses("gptq4", "has shape [3, 64]; group_size says [6, 64]",
          [](Changed& f) { f.settings()["bits"] = 4, f.settings()["group_size"] = 16; });
  refuses("gptq8", "scales\"", [](Changed& f) { f.settings()["bits"] = 4; });
  refuses("packed4", "the config says no such groups", [](Changed& f) {
    f.settings()["config_groups"]["group_0"]["weights"]["group_size"] = 16;
  });
  refuses("packed8", "bits of the config say otherwise",
          [](Changed& f) { f.settings()["config_groups"]["group_0"]["weights"]["num_bits"] = 4; });
  refuses("int8_channel", "says no weights of it", [](Changed& f) {
    f.settings()["config_groups"]["group_0"]["weights"]["type"] = "float";
  });
  refuses("fp8_inverse", "the config says no such groups", [](Changed& f) {
    f.settings()["weight_block_size"] = {16, 16};
  });
  // missing
  refuses("awq", "k_proj.scales\" is missing", [](Changed& f) { f.drop(kModule + ".scales"); });
  refuses("gptq4", "k_proj.qzeros\" is missing", [](Changed& f) { f.drop(kModule + ".qzeros"); });
  refuses("packed4", "k_proj.weight_shape\" is missing",
          [](Changed& f) { f.drop(kModule + ".weight_shape"); });
  refuses("packed4", "k_proj.weight_scale\" is missing",
          [](Changed& f) { f.drop(kModule + ".weight_scale"); });
  refuses("fp8_inverse", "k_proj.weight_scale_inv\" is missing",
          [](Changed& f) { f.drop(kModule + ".weight_scale_inv"); });
  refuses("awq", "has no weight in the format fp8", [](Changed& f) {
    f.settings() = {{"quant_method", "fp8"}};
  });
  // of another type
  refuses("awq", "qweight\" has type f32; expected i32",
          [](Changed& f) { f.tensor(kModule + ".qweight").dtype = DType::f32; });
  refuses("packed4", "weight_scale\" has type i16; expected f16",
          [](Changed& f) { f.tensor(kModule + ".weight_scale").dtype = DType::i16; });
  // another number of rows or columns
  refuses("awq", "expected a matrix",
          [](Changed& f) { f.tensor(kModule + ".qweight").shape = {64 * 4}; });
  refuses("gptq4", "g_idx\" has shape [32, 2]", [](Changed& f) {
    f.tensor(kModule + ".g_idx").shape = {32, 2};
  });
  // no numbers
  std::vector<std::byte> broken;
  refuses("gptq4", "names group 9 for column 5; there are 2", [&](Changed& f) {
    TensorView& t = f.tensor(kModule + ".g_idx");
    broken.assign(t.data.begin(), t.data.end());
    broken[5 * 4] = std::byte{9};
    t.data = broken;
  });
  refuses("packed4", "the scale of row 0, group 0 is", [&](Changed& f) {
    TensorView& t = f.tensor(kModule + ".weight_scale");
    broken.assign(t.data.begin(), t.data.end());
    broken[0] = broken[1] = std::byte{0x7f};
    broken[0] = std::byte{0xc0};
    t.data = broken;
  });
  refuses("packed4", "weight_packed\" has shape", [&](Changed& f) {
    TensorView& t = f.tensor(kModule + ".weight_shape");
    broken.assign(t.data.begin(), t.data.end());
    broken[8 + 6] = std::byte{1};  // 2^48 more columns
    t.data = broken;
  });
}

TEST(QuantizedFolders, AFamilyThatTurnsMatricesIsRefused) {
  // GPT-2 stores [in, out], and its programs [out, in]: squares would be read wrongly
  const test::TemporaryFolder scratch;
  const fs::path gpt2 = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/gpt2/base";
  Json config = json_of(gpt2 / "config.json");
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "int-quantized"},
      {"config_groups", {{"g", {{"weights", {{"num_bits", 8}, {"type", "int"}}}}}}}};
  scratch.write("config.json", config.dump());
  const format::TensorFile file = format::open_safetensors_folder(gpt2);
  std::vector<TensorView> tensors = file.tensors();
  const std::string name = "transformer.h.0.attn.c_proj.weight";
  std::vector<std::byte> codes, scale(4);
  for (TensorView& t : tensors) {
    if (t.name != name) continue;
    codes.resize(static_cast<size_t>(format::element_count(t.shape)));
    t.dtype = DType::i8;
    t.data = codes;
  }
  ASSERT_FALSE(codes.empty());
  tensors.push_back({name + "_scale", DType::f32, {1}, scale});
  format::write_safetensors(scratch / "model.safetensors", tensors);
  expect_error(ErrorKind::file, "transposes it", [&] { load_checkpoint(scratch.path()); });
}

}  // namespace
}  // namespace tessera::convert::quantized_folder_test
