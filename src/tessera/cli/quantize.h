// `quantize`, most of which needs no tensors. Torch-free.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/convert/quantize.h"

namespace tessera::cli {

/// What measuring importance reads.
struct ImportanceArgs {
  std::string model, text, families;
  int64_t tokens = 0;  // of the text at most
};
struct MeasuredImportance {
  convert::Importance by_name;
  int64_t tokens = 0;  // read
};
/// Who measures it: a run of the model, which needs tensors.
using ImportanceMeter = std::function<MeasuredImportance(const ImportanceArgs& args)>;

std::function<int()> add_quantize(CLI::App& app, ImportanceMeter meter);

/// The option of `quantize` that needs tensors.
inline constexpr const char* kImportance = "--importance";

}  // namespace tessera::cli
