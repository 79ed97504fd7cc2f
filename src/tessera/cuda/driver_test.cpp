// Compiled kernels: registers and spills as ptxas counts them, and what happens without a driver.
#include "tessera/cuda/driver.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tessera/base/error_type.h"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda::driver_test {
namespace {

const std::map<std::string, int> kRegisters{
#define TESSERA_CUDA_KERNEL(name, Struct) {#name, Struct::kRegisters},
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
};

/// For every kernel and kind of GPU: no spills, no stack frame, and registers within its bound.
TEST(CompiledKernels, RegistersAndSpillsAreBounded) {
  std::ifstream file(std::string(TESSERA_BINARY_DIR) + "/generated/cuda/ptxas.txt");
  if (compiled_kernels().empty()) GTEST_SKIP() << "built without nvcc";
  ASSERT_TRUE(file) << "ptxas.txt is missing";
  const std::regex entry("Compiling entry function '(\\w+)' for '(\\w+)'"),
      spills("(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads"),
      registers("Used (\\d+) registers");
  std::map<std::string, std::set<std::string>> targets;
  std::string kernel, target;
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_search(line, match, entry)) {
      kernel = match[1], target = match[2];
      ASSERT_EQ(kRegisters.count(kernel), 1u) << kernel;
    } else if (std::regex_search(line, match, spills)) {
      EXPECT_TRUE(match[1] == "0" && match[2] == "0" && match[3] == "0")
          << kernel << " for " << target << ": " << line;
    } else if (std::regex_search(line, match, registers)) {
      EXPECT_LE(std::stoi(match[1]), kRegisters.at(kernel)) << kernel << " for " << target;
      targets[target].insert(kernel);
    }
  }
  EXPECT_EQ(targets.size(), 2u);
  for (const auto& [name, kernels] : targets) EXPECT_EQ(kernels.size(), kRegisters.size()) << name;
}

TEST(Driver, WithoutALibraryNamesIt) {
  Driver none("libcuda_of_no_machine.so");
  const std::string reason = none.open(0);
  EXPECT_NE(reason.find("expected"), std::string::npos) << reason;
  if (!compiled_kernels().empty()) {
    EXPECT_NE(reason.find("libcuda_of_no_machine.so"), std::string::npos) << reason;
  }
  const LinearScanOutput::Arguments arguments;
  try {
    none.launch(Kernel::linear_scan_output, {}, 128, &arguments, {});
    FAIL() << "launched without a driver";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "[cuda] " + reason);
  }
}

}  // namespace
}  // namespace tessera::cuda::driver_test
