#include "tessera/base/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kArchReqXcompPerm = 0x1023;  // arch_prctl: ask the kernel for the tile data state
constexpr int kXtileData = 18;

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(unsigned word, int n) {
  return ((word >> n) & 1u) != 0;
}

uint64_t enabled_state() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;  // no OSXSAVE
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

CpuInfo probe() {
  CpuInfo info;
  info.model = model_name();
  const uint64_t state = enabled_state();
  const Leaf one = cpuid(1, 0);
  const Leaf seven = cpuid(7, 0);
  const Leaf seven_one = cpuid(7, 1);
  const bool ymm = (state & 0x6) == 0x6;
  const bool zmm = (state & 0xe6) == 0xe6;
  const bool avx2 =
      ymm && bit(seven.ebx, 5) && bit(one.ecx, 12) && bit(one.ecx, 29);  // avx2, fma, f16c
  const bool avx512 = avx2 && zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) &&
                      bit(seven.ebx, 30) && bit(seven.ebx, 31);
  const bool amx_announced = bit(seven.edx, 24) && bit(seven.edx, 22);
  const bool amx_permitted =
      amx_announced && syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
  const bool palette = cpuid(0x1d, 0).eax >= 1 && cpuid(0x1d, 1).ebx != 0;
  info.amx_announced_but_unusable = amx_announced && !(amx_permitted && palette);
  info.best = avx512 && amx_permitted && palette ? CpuTarget::amx
              : avx512                           ? CpuTarget::avx512
              : avx2                             ? CpuTarget::avx2
                                                 : CpuTarget::generic;
  info.has_avx512_bf16 = avx512 && bit(seven_one.eax, 5);
  info.has_bf16_units = info.has_avx512_bf16 || info.best == CpuTarget::amx;
  info.allowed = info.best;
  if (const char* wish = std::getenv("TESSERA_CPU"); wish != nullptr && *wish != '\0') {
    const std::string name = wish;
    CpuTarget target{};
    if (name == "generic")
      target = CpuTarget::generic;
    else if (name == "avx2")
      target = CpuTarget::avx2;
    else if (name == "avx512")
      target = CpuTarget::avx512;
    else if (name == "amx")
      target = CpuTarget::amx;
    else
      fail(ErrorKind::usage, "cpu", "TESSERA_CPU = \"{}\"; expected generic, avx2, avx512 or amx",
           name);
    info.allowed = std::min(info.best, target);
  }
  return info;
}

}  // namespace

const CpuInfo& cpu_info() {
  static const CpuInfo info = probe();
  return info;
}

const char* name_of(CpuTarget target) {
  switch (target) {
    case CpuTarget::generic:
      return "generic";
    case CpuTarget::avx2:
      return "avx2";
    case CpuTarget::avx512:
      return "avx512";
    case CpuTarget::amx:
      return "amx";
  }
  return "?";
}

std::string cap_onednn() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) return "";
  const CpuInfo& info = cpu_info();
  if (!info.amx_announced_but_unusable && info.allowed == info.best) return "";
  const char* cap = info.allowed == CpuTarget::generic ? "SSE41"
                    : info.allowed == CpuTarget::avx2  ? "AVX2"
                    : info.has_bf16_units              ? "AVX512_CORE_BF16"
                                                       : "AVX512_CORE";
  if (info.allowed == CpuTarget::amx) return "";
  setenv("ONEDNN_MAX_CPU_ISA", cap, 1);
  return cap;
}

}  // namespace tessera
