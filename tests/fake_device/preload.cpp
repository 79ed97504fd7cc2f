// The test device in a program as it is: LD_PRELOAD=libtessera_test_device.so registers it before
// main(), so that --device fake is known. It comes last in its library, after fake_device's own
// variables.
#include <cstdlib>
#include <string>

#include "fake_device/fake_device.h"

namespace {

const bool installed = [] {
  // its memory, to test what does not fit
  fake_device::Options options;
  if (const char* mib = std::getenv("TESSERA_FAKE_MIB")) options.bytes = std::stoul(mib) << 20;
  fake_device::install(options);
  // with atomic sums, as a GPU has them, to test --deterministic
  if (std::getenv("TESSERA_FAKE_UNORDERED") != nullptr) new fake_device::UnorderedSums;
  return true;
}();

}  // namespace
