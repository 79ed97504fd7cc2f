// --device: where a command computes.
#pragma once

#include <vector>

#include "tessera/cli/cli.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/placement.h"
#include "tessera/ops/device_name.h"

namespace tessera::cli {

class DeviceFlag {
 public:
  CLI::Option* add(CLI::App& app) {
    option_ = app.add_option("--device", given_,
                             "where to compute: cpu, cuda or cuda:N; default TESSERA_DEVICE, else "
                             "cpu. Quantized weights are float32 on a GPU");
    return option_;
  }
  /// On another device than the CPU, this option is an error.
  void excludes(const CLI::Option* option) { on_cpu_.push_back(option); }

  /// Throws Error(usage) for a name or device that is not there, and for options of a CPU.
  at::Device device() const {
    if (option_->count() > 0 && given_.empty())
      fail(ErrorKind::usage, "device", "--device is empty; expected cpu, cuda or cuda:N");
    const std::string name = given_.empty() ? device_of_environment() : given_;
    const at::Device device = ops::device_named(name);
    for (const CLI::Option* option : on_cpu_)
      if (!device.is_cpu() && option->count() > 0)
        fail(ErrorKind::usage, "device",
             "{}: {} is available on the CPU; leave it out, or --device cpu", name,
             option->get_name());
    return device;
  }
  /// What load() returns, with its weights there; errors of device() come first.
  template <class Load>
  infer::LoadedModel loaded(const Load& load) const {
    const at::Device there = device();
    infer::LoadedModel out = load();
    if (!there.is_cpu()) out.model = model::to_device(out.model, there);
    return out;
  }

 private:
  CLI::Option* option_ = nullptr;
  std::string given_;
  std::vector<const CLI::Option*> on_cpu_;
};

}  // namespace tessera::cli
