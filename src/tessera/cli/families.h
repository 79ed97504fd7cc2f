// `families`, most of which needs no tensors. Torch-free.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// What the proof of a family by a text reads.
struct FamilyProofArgs {
  std::string model, families, text;  // folders; a file or "-"
  int64_t tokens = 0;                 // of the text at most
};
/// Whether all forms of the model agree on a text; prints that, and the text's perplexity.
using FamilyProver = std::function<bool(const FamilyProofArgs& args)>;

std::function<int()> add_model_families(CLI::App& app, FamilyProver prover);

/// The option of `families propose` that needs tensors.
inline constexpr const char* kProofText = "--text";

}  // namespace tessera::cli
