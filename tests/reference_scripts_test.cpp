// What other people's programs make of ours: Hugging Face folders in transformers
// (tools/golden/export_check.py), libtessera_ops.so in Python's torch
// (tools/golden/torch_ops_check.py), GGUF files in llama.cpp (tools/golden/gguf_check.py). Needs
// TESSERA_REFERENCE_PYTHON, a Python with these;
// TESSERA_REQUIRE_REFERENCE=1 makes its absence a failure.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tessera/base/testing.h"

namespace {

class ReferenceScripts : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* python = std::getenv("TESSERA_REFERENCE_PYTHON")) {
      python_ = python;
      return;
    }
    const char* required = std::getenv("TESSERA_REQUIRE_REFERENCE");
    if (required != nullptr && std::string(required) == "1")
      FAIL() << "TESSERA_REFERENCE_PYTHON is not set";
    GTEST_SKIP() << "TESSERA_REFERENCE_PYTHON is not set";
  }
  /// The exit status of tools/golden/`script` with these arguments.
  int run(const std::string& script, const std::string& arguments) const {
    return std::system(
        (python_ + " '" + source_ + "/tools/golden/" + script + "' " + arguments + " 2>/dev/null")
            .c_str());
  }
  std::string python_;
  std::string source_ = TESSERA_SOURCE_DIR;
};

TEST_F(ReferenceScripts, TransformersLoadsWhatIsWritten) {
  const tessera::test::TemporaryFolder work;
  EXPECT_EQ(run("export_check.py", "'" TESSERA_PROGRAM "' '" + source_ +
                                       "/tests/golden/families' '" + work.path().string() + "'"),
            0);
}

TEST_F(ReferenceScripts, LlamaCppRunsWhatIsWritten) {
  if (std::system((python_ + " -c 'import llama_cpp, gguf' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "llama-cpp-python 0.3.36 or gguf is not installed there";
  const tessera::test::TemporaryFolder work;
  const char* model = std::getenv("TESSERA_SMOLLM2");
  const char* data = std::getenv("TESSERA_TEST_DATA");
  std::string more;
  if (model != nullptr) more += " '" + std::string(model) + "'";
  if (model != nullptr && data != nullptr)
    more += " '" + std::string(data) + "/text/wikitext2.test.txt'";
  EXPECT_EQ(run("gguf_check.py", "'" TESSERA_PROGRAM "' '" + source_ + "/tests/golden/families' '" +
                                     work.path().string() + "'" + more),
            0);
}

TEST_F(ReferenceScripts, TorchTakesTheOps) {
  EXPECT_EQ(run("torch_ops_check.py", "'" TESSERA_TORCH_OPS "'"), 0);
}

}  // namespace
