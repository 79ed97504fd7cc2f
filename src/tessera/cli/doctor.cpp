#include <fmt/ranges.h>
#include <torch/version.h>

#include "tessera/base/cpu.h"
#include "tessera/base/resident.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/form_table.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/tiles.h"
#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/cuda_kernels.h"
#include "tessera/ops/graph.h"
#include "tessera/ops/device_name.h"
#include "tessera/ops/form.h"
#include "tessera/ops/tensor.h"

namespace tessera::cli {
namespace {

int doctor(bool json) {
  const CpuInfo& cpu = cpu_info();
  // a product, so that the figure includes what libtorch loads on first use
  const float checksum = at::matmul(at::ones({64, 64}), at::ones({64, 64})).sum().item<float>();
  const std::string cuda = ops::no_cuda_reason(), cuda_kernels = ops::no_cuda_kernels_reason(0),
                    cuda_graphs = cuda.empty()
                                      ? ops::Graph::unavailable_reason(at::Device(at::kCUDA, 0))
                                      : "no GPU";
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
      {"cuda_kernels", cuda_kernels.empty() ? "available" : cuda_kernels},
      {"cuda_graphs", cuda_graphs.empty() ? "available" : cuda_graphs},
      {"resident_bytes", resident_bytes()},
      {"product_is_right", checksum == 64.0f * 64 * 64}};
  if (json)
    print_json(report);
  else
    for (const auto& [key, value] : report.items())
      fmt::print("{:<28} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  return report["product_is_right"].get<bool>() ? kExitOk : kExitFailed;
}

// --- forms of operations ---

std::vector<std::string> names_of(uint32_t asks) {
  std::vector<std::string> out;
  for (const ops::Ask& ask : ops::asks())
    if ((asks & ask.bit) != 0) out.emplace_back(ask.name);
  return out;
}

int forms(bool json) {
  if (json) {
    Json report = {{"cuda_kernels", ops::cuda_kernels()},
                   {"operations", Json::array()},
                   {"attention", Json::array()},
                   {"attention_properties", Json::object()}};
    for (const ops::Operation& operation : ops::operations()) {
      Json row = {{"name", operation.name}, {"what", operation.what}};
      for (const FormColumn& column : form_columns())
        row["forms"][column.key] = name_of(form_of(operation.op, column.setting));
      report["operations"].push_back(row);
    }
    for (const ops::AttentionRow& row : ops::attention_table())
      report["attention"].push_back({{"form", name_of(row.form)},
                                     {"serves", names_of(row.serves)},
                                     {"needs", names_of(row.needs)}});
    for (const ops::Ask& ask : ops::asks())
      report["attention_properties"][std::string(ask.name)] = ask.meaning;
    print_json(report);
    return kExitOk;
  }
  fmt::print("{:<24} {:<49} CUDA\n{:<24}", "", "CPU", "operation");
  for (const FormColumn& column : form_columns()) fmt::print(" {:<9}", column.heading);
  fmt::print(" computes\n");
  for (const ops::Operation& operation : ops::operations()) {
    fmt::print("{:<24}", operation.name);
    for (const FormColumn& column : form_columns())
      fmt::print(" {:<9}", name_of(form_of(operation.op, column.setting)));
    fmt::print(" {}\n", operation.what);
  }
  fmt::print(
      "\nplain: torch operations\nkernel: batch-invariant CPU kernels\n"
      "learning: CPU kernels with a backward pass\ncuda: CUDA kernels ({})\n\n"
      "attention: the first row that serves all properties of a call\n",
      ops::cuda_kernels() ? "available" : "not available here, plain instead");
  for (const ops::AttentionRow& row : ops::attention_table())
    fmt::print(
        "{:<24} {}{}\n", name_of(row.form), fmt::join(names_of(row.serves), ", "),
        row.needs == 0 ? "" : fmt::format("; needs {}", fmt::join(names_of(row.needs), ", ")));
  fmt::print("\nproperties of a call of attention\n");
  for (const ops::Ask& ask : ops::asks()) fmt::print("{:<24} {}\n", ask.name, ask.meaning);
  return kExitOk;
}

}  // namespace

std::function<int()> add_doctor(CLI::App& app) {
  struct Flags {
    bool json = false, forms = false;
  };
  auto flags = std::make_shared<Flags>();
  group(app, "Output");
  app.add_flag("--forms", flags->forms,
               "print which form computes each operation: torch operations, CPU or CUDA kernels");
  app.add_flag("--json", flags->json, "as JSON");
  examples(app, {"tessera doctor", "tessera doctor --forms"});
  return [flags] { return flags->forms ? forms(flags->json) : doctor(flags->json); };
}

}  // namespace tessera::cli
