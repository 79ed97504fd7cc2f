// Loading of real files, and of every golden family folder. The goldens' numbers are tested where
// models run; here: spec, names, shapes and that nothing is copied without need.
#include "tessera/convert/checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tessera/base/testing.h"

namespace tessera::convert {
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

}  // namespace
}  // namespace tessera::convert
