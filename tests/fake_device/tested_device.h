// The device of the device suites: the test device, or that of TESSERA_TESTED_DEVICE ("cuda", ...),
// with which scripts/device_check.sh runs them on a machine with a GPU.
#pragma once

#include <cstdlib>
#include <string>

#include "fake_device/fake_device.h"
#include "tessera/ops/device_name.h"

namespace tessera::test {

/// TESSERA_TESTED_DEVICE; "" = the test device.
inline std::string tested_device_name() {
  const char* const name = std::getenv("TESSERA_TESTED_DEVICE");
  return name == nullptr ? "" : name;
}

/// False on other devices, which count neither copies nor operators.
inline bool is_test_device() {
  return tested_device_name().empty();
}

/// Installs the test device on first use.
inline at::Device tested_device() {
  if (!is_test_device()) return ops::device_named(tested_device_name());
  fake_device::install();
  return fake_device::device();
}

}  // namespace tessera::test
