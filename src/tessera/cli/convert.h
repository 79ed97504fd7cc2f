// `convert`, mostly without tensors. Torch-free.
#pragma once

#include <array>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/convert/experts.h"
#include "tessera/convert/peft.h"

namespace tessera::cli {

/// Inputs of distilling experts.
struct DistillArgs {
  std::string text, tokenizer;  // a file or "-"; a model or tokenizer
  convert::ExpertLoads use;     // empty: measured on the text
  int64_t tokens = 0, steps = 0;
  uint64_t seed = 0;
};
/// Fits one dense layer for every mixture of experts, on a text.
using Distiller =
    std::function<convert::Checkpoint(convert::Checkpoint checkpoint, const DistillArgs& args)>;

/// Merges an adapter into a model, or removes it.
using Merger = std::function<convert::Checkpoint(convert::Checkpoint checkpoint,
                                                 const std::string& adapter,
                                                 convert::MergedAs as,
                                                 const convert::LoadOptions& options)>;
/// Writes an adapter of a model as PEFT files.
using AdapterExporter = std::function<void(const std::string& adapter,
                                           const convert::Checkpoint& checkpoint,
                                           const std::string& out,
                                           const convert::LoadOptions& options)>;

/// Implementations that need tensors.
struct TensorConverters {
  Distiller distil;
  Merger merge, unmerge;
  AdapterExporter export_adapter;
};
std::function<int()> add_convert(CLI::App& app, TensorConverters converters);

/// The options of `convert` that need tensors.
inline constexpr const char* kDistillExperts = "--distill-experts";
inline constexpr const char* kMergeAdapter = "--merge-adapter";
inline constexpr const char* kUnmergeAdapter = "--unmerge-adapter";
inline constexpr const char* kExportAdapter = "--export-adapter";
inline constexpr std::array kTensorOptions = {kDistillExperts, kMergeAdapter, kUnmergeAdapter,
                                              kExportAdapter};

}  // namespace tessera::cli
