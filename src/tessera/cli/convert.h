// `convert`, most of which needs no tensors. Torch-free.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/convert/experts.h"

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

/// The verb with someone who distils.
std::function<int()> add_convert(CLI::App& app, Distiller distiller);

/// The option of `convert` that needs tensors.
inline constexpr const char* kDistillExperts = "--distill-experts";

}  // namespace tessera::cli
