// What this processor can do, and what tessera lets itself use.
//
// TESSERA_CPU=generic|avx2|avx512|amx caps the instruction set. Some machines announce AMX in CPUID
// but have no tile palette; oneDNN inside libtorch then dies with SIGILL in bf16 products.
// cap_onednn() sets ONEDNN_MAX_CPU_ISA accordingly; it must run before libtorch computes anything.
#pragma once

#include <string>

namespace tessera {

enum class CpuTarget { generic, avx2, avx512, amx };

struct CpuInfo {
  std::string model;                       // as the system names it
  CpuTarget best = CpuTarget::generic;     // what the hardware can really run
  CpuTarget allowed = CpuTarget::generic;  // after TESSERA_CPU
  bool has_avx512_bf16 = false;
  bool has_bf16_units = false;             // avx512-bf16 or usable amx
  bool amx_announced_but_unusable = false;
};

/// Probed once. Throws Error(usage) when TESSERA_CPU is not a known name.
const CpuInfo& cpu_info();
const char* name_of(CpuTarget target);

/// Sets ONEDNN_MAX_CPU_ISA unless the user did; returns what was set, or "" when nothing was
/// needed.
std::string cap_onednn();

}  // namespace tessera
