// `plan`, mostly without tensors. Torch-free.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/convert/checkpoint.h"
#include "tessera/spec/json.h"

namespace tessera::cli {

/// What a plan of memory reads.
struct FitArgs {
  std::string path;  // of a spec, a model, or a recipe, whose training is planned
  std::vector<std::string> overrides;
  convert::LoadOptions loading;
  std::string device, memory;  // --device, --memory; one may be ""
  int64_t context = 0, sequences = 1;
  std::string kv_type = "f32";
};
/// The plan as JSON: bytes by part, what the device has, whether it fits, and what would fit.
using FitPlanner = std::function<spec::Json(const FitArgs& args)>;

std::function<int()> add_plan(CLI::App& app, FitPlanner planner);

/// The options of `plan` that need tensors.
inline constexpr const char* kFitDevice = "--device";
inline constexpr const char* kFitMemory = "--memory";
inline constexpr std::array kFitOptions = {kFitDevice, "-dev", kFitMemory};

}  // namespace tessera::cli
