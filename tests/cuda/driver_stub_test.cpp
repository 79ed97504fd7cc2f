// Kernels through cuda/driver.h with a driver's library of the test in place of NVIDIA's.
#include <gtest/gtest.h>

#include <thread>

#include "tessera/base/error_type.h"
#include "tessera/cuda/driver.h"
#include "tessera/cuda/kernels_testing.h"

namespace tessera::cuda {
namespace {

class DriverStub : public testing::Test {
 protected:
  void SetUp() override {
    if (compiled_kernels().empty()) GTEST_SKIP() << "built without nvcc";
  }
  Driver driver_{TESSERA_STUB_DRIVER};
};

TEST_F(DriverStub, LaunchesWithArgumentsInTheContextOfTheDevice) {
  EXPECT_EQ(driver_.open(0), "");
  const Chunks chunks({5, 70}, 64);
  const int64_t width = 130, n = chunks.tokens() * width;
  const std::vector<float> a = numbers(n, .7), b = numbers(n, .3),
                           before = numbers(chunks.count() * width, .5);
  std::vector<float> h = unwritten(n), want = unwritten(n);
  const auto arguments = [&](std::vector<float>& out) {
    return LinearScanOutput::Arguments{a.data(),      b.data(),   chunks.starts.data(),
                                       before.data(), out.data(), width};
  };
  const Grid grid{chunks.count(), blocks_of(width, LinearScanOutput::kThreads)};
  emulate<LinearScanOutput>(grid, arguments(want), Order::forwards);
  const auto launch_here = [&] {
    const auto in = arguments(h);
    driver_.launch(Kernel::linear_scan_output, grid, LinearScanOutput::kThreads, &in, {});
  };
  launch_here();
  EXPECT_EQ(h, want);
  // another thread has no context of its own
  h = unwritten(n);
  std::thread(launch_here).join();
  EXPECT_EQ(h, want);
}

TEST_F(DriverStub, ErrorsNameWhatFailed) {
  const std::string reason = driver_.open(3);
  EXPECT_NE(reason.find("cuDeviceGet on cuda:3: invalid device ordinal (error 101)"),
            std::string::npos)
      << reason;
  const LinearScanOutput::Arguments in;
  try {
    driver_.launch(Kernel::linear_scan_output, {1, 2, 1}, 2048, &in, {});
    FAIL() << "launched 2,048 threads";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("[cuda] kernel linear_scan_output on cuda:0 with 1 x 2 x 1 blocks of 2048 "
                        "threads"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace tessera::cuda
