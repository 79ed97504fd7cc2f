#include <torch/version.h>

#include "tessera/base/cpu.h"
#include "tessera/base/resident.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/tiles.h"
#include "tessera/ops/device_name.h"
#include "tessera/ops/tensor.h"

namespace tessera::cli {
namespace {

int doctor(bool json) {
  const CpuInfo& cpu = cpu_info();
  // a product, so that the figure includes what libtorch loads on first use
  const float checksum = at::matmul(at::ones({64, 64}), at::ones({64, 64})).sum().item<float>();
  const std::string cuda = ops::no_cuda_reason();
  const Json report = {
      {"cpu", cpu.model},
      {"instruction_sets", name_of(cpu.best)},
      {"allowed", name_of(cpu.allowed)},
      {"kernels", kernels::current_target()},
      {"bf16_units", cpu.has_bf16_units},
      {"amx_in_use", kernels::use_tiles()},
      {"amx_announced_but_unusable", cpu.amx_announced_but_unusable},
      {"onednn_cap",
       std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr ? std::getenv("ONEDNN_MAX_CPU_ISA") : ""},
      {"threads", thread_count()},
      {"libtorch", std::string(TORCH_VERSION)},
      {"devices", ops::devices()},
      {"cuda", cuda.empty() ? "available" : cuda},
      {"resident_bytes", resident_bytes()},
      {"product_is_right", checksum == 64.0f * 64 * 64}};
  if (json)
    print_json(report);
  else
    for (const auto& [key, value] : report.items())
      fmt::print("{:<28} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  return report["product_is_right"].get<bool>() ? kExitOk : kExitFailed;
}

}  // namespace

std::function<int()> add_doctor(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  group(app, "Output");
  app.add_flag("--json", *json, "as JSON");
  examples(app, {"tessera doctor"});
  return [json] { return doctor(*json); };
}

}  // namespace tessera::cli
