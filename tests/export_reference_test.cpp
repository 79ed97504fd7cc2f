// What tessera writes as Hugging Face folders, loaded by transformers itself
// (tools/golden/export_check.py). Needs TESSERA_REFERENCE_PYTHON, a Python with transformers;
// TESSERA_REQUIRE_REFERENCE=1 makes its absence a failure.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

TEST(ExportReference, TransformersLoadsWhatIsWritten) {
  const char* python = std::getenv("TESSERA_REFERENCE_PYTHON");
  if (python == nullptr) {
    const char* required = std::getenv("TESSERA_REQUIRE_REFERENCE");
    if (required != nullptr && std::string(required) == "1")
      FAIL() << "TESSERA_REFERENCE_PYTHON is not set";
    GTEST_SKIP() << "TESSERA_REFERENCE_PYTHON is not set";
  }
  const std::string source = TESSERA_SOURCE_DIR;
  const auto work =
      std::filesystem::temp_directory_path() / ("tessera_export_" + std::to_string(getpid()));
  const std::string command = std::string(python) + " '" + source +
                              "/tools/golden/export_check.py' '" TESSERA_PROGRAM "' '" + source +
                              "/tests/golden/families' '" + work.string() + "' 2>/dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::filesystem::remove_all(work);
}

}  // namespace
