// A test device: an accelerator that machines without one can test against.
//
// It is a PrivateUse1 backend of libtorch, "fake:0", "fake:1", ... A tensor on it has an address,
// at which the host can neither read nor write: the address is in a range of pages without access
// rights. A second mapping of the same pages, at a constant distance, is known to the operators
// alone. Host code that uses a tensor's address without regard to its device (a kernel, a memcpy,
// data_ptr<float>()[0]) therefore fails here as it would on a GPU, and not silently pass as on a
// CPU.
//
// Every operator runs its CPU kernel on CPU tensors that share the device's memory: results are
// bit-identical to the CPU's. An operator whose tensors are on different devices is refused, as by
// CUDA. Operators can be recorded and replayed as a CUDA graph's (at::GraphImplInterface): while
// they are recorded nothing is computed, and copies from and to the host are refused. What it
// cannot show: asynchronous execution, time, operators and types that CUDA lacks, and other
// rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace fake_device {

struct Options {
  int devices = 2;
  size_t bytes = size_t{4} << 30;  // memory of each device; an allocation beyond it throws
  bool poison = true;              // fresh memory holds bytes 0xff (NaN)
  /// Record accesses of the host and operators over several devices as findings, and continue as on
  /// a CPU. Without it an access ends the process (exit code 86), and such an operator throws.
  bool survey = false;
};

/// While one lives, sums of rows by index (gradients of an embedding, index_add, scatter_add) have
/// other last bits at every call, as atomic additions of a GPU do, unless libtorch's deterministic
/// algorithms are set.
class UnorderedSums {
 public:
  UnorderedSums();
  ~UnorderedSums();
  UnorderedSums(const UnorderedSums&) = delete;
  UnorderedSums& operator=(const UnorderedSums&) = delete;
};

/// Registers the backend, once per process and before any backward pass; further calls do nothing.
void install(const Options& options = {});
at::Device device(int index = 0);

/// The allocation of an address, "fake:0, byte 24 of an allocation of 4096"; "" for host memory.
std::string describe(const void* address);

/// Operators and copies since reset_counts(): where a GPU would wait or copy.
struct Counts {
  int64_t operators = 0;
  int64_t to_device = 0, to_host = 0, between = 0;  // copies
  int64_t bytes_to_host = 0;                        // of the copies to the host
  int64_t scalars = 0;                              // numbers read by item()
  size_t bytes_in_use = 0, bytes_at_most = 0;
  std::map<std::string, int64_t> by_name;  // operators
  int64_t replays = 0;                     // of graphs, whose operators are not counted
  int64_t not_deterministic = 0;           // operators without libtorch's deterministic algorithms
};
Counts counts();
void reset_counts();

/// From now on recording operators fails, as it may on a GPU.
void refuse_graphs(bool refuse);

/// A finding of a survey, with the callers' addresses, innermost first.
struct Finding {
  std::string what;
  std::vector<void*> callers;
  /// Its callers in the program, "program(+0x12ab)" for addr2line, at most `n`.
  std::string where(size_t n = 6) const;
};
std::vector<Finding> findings();
void clear_findings();

/// While one lives, the host can access the devices' memory: for kernels that a test runs there in
/// place of a device.
class Opened {
 public:
  Opened();
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

/// Runs f, without a survey. Returns "" if it returns, or describe() of the first device memory
/// that it accesses on this thread; it is then left by a jump, without destructors.
std::string touched(const std::function<void()>& f);

}  // namespace fake_device
