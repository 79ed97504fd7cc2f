// The test device in a program as it is: LD_PRELOAD=libtessera_test_device.so registers it before
// main(), so that --device fake is known. It comes last in its library, after fake_device's own
// variables.
#include "fake_device/fake_device.h"

namespace {

const bool installed = [] {
  fake_device::install();
  return true;
}();

}  // namespace
