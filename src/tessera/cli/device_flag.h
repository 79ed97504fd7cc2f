// --device: where a command computes.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/model/placement.h"
#include "tessera/ops/device_name.h"

namespace tessera::cli {

struct DeviceFlag {
  std::string name = "cpu";

  CLI::Option* add(CLI::App& app) {
    return app
        .add_option("--device", name,
                    "where to compute: cpu, cuda or cuda:N; quantized weights are float32 on a GPU")
        ->capture_default_str();
  }
  /// Throws Error(usage) for a name or device that is not there.
  at::Device device() const { return ops::device_named(name); }
  /// The model there.
  model::Model placed(const model::Model& model) const { return model::to_device(model, device()); }
  bool is_cpu() const { return name == "cpu"; }
};

}  // namespace tessera::cli
