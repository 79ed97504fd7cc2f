// Processor features, and which of them tessera uses.
//
// TESSERA_CPU=generic|avx2|avx512|amx caps the instruction set. Some machines announce AMX in CPUID
// but have no tile palette; oneDNN inside libtorch then dies with SIGILL in bf16 products.
// cap_onednn() sets ONEDNN_MAX_CPU_ISA accordingly; it must run before libtorch computes anything.
#pragma once

#include <string>

namespace tessera {

enum class CpuTarget { generic, avx2, avx512, amx };

struct CpuInfo {
  std::string model;                       // as reported by the system
  CpuTarget best = CpuTarget::generic;     // usable on this hardware
  CpuTarget allowed = CpuTarget::generic;  // after TESSERA_CPU
  bool has_avx512_bf16 = false;
  bool has_bf16_units = false;  // avx512-bf16 or usable amx
  bool amx_announced_but_unusable = false;
};

/// Detected once. Throws Error(usage) for an unknown name in TESSERA_CPU.
const CpuInfo& cpu_info();
const char* name_of(CpuTarget target);

/// Sets ONEDNN_MAX_CPU_ISA unless the user did; returns the value, or "" if it is not needed.
std::string cap_onednn();

}  // namespace tessera
