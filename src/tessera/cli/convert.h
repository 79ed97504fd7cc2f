// `convert`, most of which needs no tensors. Torch-free.
#pragma once

#include <array>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/convert/experts.h"
#include "tessera/convert/peft.h"

namespace tessera::cli {

/// What distilling experts reads.
struct DistillArgs {
  std::string text, tokenizer;  // a file or "-"; a model or tokenizer
  convert::ExpertLoads use;     // empty: that of the text
  int64_t tokens = 0, steps = 0;
  uint64_t seed = 0;
};
/// One dense layer of every mixture, fitted to a text.
using Distiller =
    std::function<convert::Checkpoint(convert::Checkpoint checkpoint, const DistillArgs& args)>;

/// The model with an adapter in its weights, or without one that was.
using Merger = std::function<convert::Checkpoint(convert::Checkpoint checkpoint,
                                                 const std::string& adapter,
                                                 convert::MergedAs as,
                                                 const convert::LoadOptions& options)>;
/// An adapter beside a model, written in the files of PEFT.
using AdapterExporter = std::function<void(const std::string& adapter,
                                           const convert::Checkpoint& checkpoint,
                                           const std::string& out,
                                           const convert::LoadOptions& options)>;

/// Who does what needs tensors.
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
