// Loading of real files, and of every golden family folder. The goldens' numbers are tested where
// models run; here: spec, names, shapes and that nothing is copied without need.
#include "tessera/convert/checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

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

}  // namespace
}  // namespace tessera::convert
