#include "tessera/kernels/targets.h"

#include <hwy/highway.h>

#include "tessera/base/cpu.h"
#include "tessera/base/error.h"
#include "tessera/kernels/tiles.h"

namespace tessera::kernels {
namespace {

// Highway numbers better x86 targets by lower bits: everything below a target's bit is better.
constexpr int64_t better_than(int64_t target) {
  return target - 1;
}

int64_t forbidden(CpuTarget allowed) {
  switch (allowed) {
    case CpuTarget::generic:
      return better_than(HWY_STATIC_TARGET);
    case CpuTarget::avx2:
      return better_than(HWY_AVX2);
    default:
      return 0;
  }
}

// hwy::SupportedTargets() also chooses, and among all that the processor has: what is allowed is
// chosen again.
int64_t supported_targets() {
  const int64_t targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(targets);
  return targets;
}

// The portable target is compiled in whether or not the installed Highway library lists it.
std::vector<int64_t> target_bits() {
  std::vector<int64_t> bits;
  const int64_t supported = supported_targets();
  for (const int64_t bit : {HWY_AVX3, HWY_AVX2})
    if ((supported & HWY_TARGETS & bit) != 0) bits.push_back(bit);
  bits.push_back(HWY_STATIC_TARGET);
  return bits;
}

void choose(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  supported_targets();
}

// what lives that keeps kernels from AMX
int without_tiles = 0;

}  // namespace

void cap_targets() {
  static const bool done = [] {
    hwy::DisableTargets(forbidden(cpu_info().allowed));
    supported_targets();
    return true;
  }();
  static_cast<void>(done);
}

std::vector<std::string> available_targets() {
  cap_targets();
  std::vector<std::string> names;
  for (const int64_t bit : target_bits()) names.emplace_back(hwy::TargetName(bit));
  return names;
}

std::string current_target() {
  return available_targets().front();
}

TargetScope::TargetScope(std::string_view name) {
  cap_targets();
  for (const int64_t bit : target_bits()) {
    if (name != hwy::TargetName(bit)) continue;
    choose(bit);
    ++without_tiles;
    return;
  }
  fail(ErrorKind::usage, "kernels", "target {} is not available on this processor", name);
}

TargetScope::~TargetScope() {
  choose(0);
  --without_tiles;
}

bool use_tiles() {
  return without_tiles == 0 && cpu_info().allowed == CpuTarget::amx;
}

WithoutTiles::WithoutTiles() {
  ++without_tiles;
}
WithoutTiles::~WithoutTiles() {
  --without_tiles;
}

}  // namespace tessera::kernels
