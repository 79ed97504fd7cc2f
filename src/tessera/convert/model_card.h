// README.md of a model folder, as hubs show it: where the model comes from, under which licence,
// and what conversion changed. Source: https://huggingface.co/docs/hub/model-cards.
#pragma once

#include <string>
#include <vector>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/rounded.h"

namespace tessera::convert {

/// Error of the tensors whose names differ in numbers alone: "model.layers.*.mlp.up_proj.weight".
struct GroupError {
  std::string names;
  WeightError error;
};

/// Adds the error of a tensor to its group, a new one at the end if there is none.
void add_error(std::vector<GroupError>& groups, std::string_view tensor, const WeightError& error);

/// Facts about the written folder.
struct CardFacts {
  std::string family, dtype;              // by their names; "bfloat16"
  std::vector<GroupError> errors = {};    // of the written weights; empty = not measured
  const Checkpoint* reference = nullptr;  // what the errors are relative to; null = what was read
  std::vector<std::string> lost = {};     // what the folder lacks, one line each
};

/// Metadata of the checkpoint's own card or GGUF file carried over (base model, licence, languages,
/// tags), then a few lines of text. Of an input without a licence the card has none.
std::string model_card(const Checkpoint& checkpoint, const CardFacts& facts);

}  // namespace tessera::convert
