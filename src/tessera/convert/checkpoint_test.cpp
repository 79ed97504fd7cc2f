// Loading of real files, and of every golden family folder. The goldens' numbers are tested where
// models run; here: spec, names, shapes and that nothing is copied without need.
#include "tessera/convert/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>

#include "tessera/base/testing.h"
#include "tessera/convert/foreign_config.h"
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
      {"", "is no model that tessera reads; expected a folder with a config.json"},
      {"Once upon a time there was a model", "is no model that tessera reads"},
      {"\x08\0\0\0\0\0\0\0{\"a\": {}}"s, "begins as a safetensors file; expected the folder"},
      {"PK\x03\x04 archive", "begins as a PyTorch pickle"},
      {"\x80\x02}q\0."s, "begins as a PyTorch pickle"},
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

// --- configs ------------------------------------------------------------------------------------

Json object_of(int members) {
  Json object = Json::object();
  auto& list = static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>());
  for (int i = 0; i < members; ++i) list.emplace_back("k" + std::to_string(i), i);
  return object;
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
  test::expect_error(ErrorKind::file, "is not a readable name", [&] {
    config(GgufValue::strings(std::vector<std::string>{"x", "\xff"}));
  });
}

}  // namespace
}  // namespace tessera::convert::checkpoint_test
