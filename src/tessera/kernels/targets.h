// Which instruction set the kernels run on. Each kernel is one source that Highway compiles for
// AVX-512, AVX2 and portable 128-bit code; the best one that the processor has and
// TESSERA_CPU allows (base/cpu.h) is chosen at run time. TESSERA_CPU=generic means the portable code.
//
// Results are bit-equal between runs on one target, not between targets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::kernels {

/// Highway's names of the targets usable here, best first: "AVX3", "AVX2", "EMU128".
std::vector<std::string> available_targets();
/// The one that the kernels use now.
std::string current_target();

/// For tests and benchmarks: pins every kernel to one of available_targets() until destroyed.
/// Not thread safe. Throws Error(usage) on another name.
class TargetScope {
 public:
  explicit TargetScope(std::string_view name);
  ~TargetScope();
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;
};

/// Every kernel's entry calls this first: applies TESSERA_CPU once. Throws like cpu_info().
void cap_targets();

}  // namespace tessera::kernels
