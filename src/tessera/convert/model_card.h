// README.md of a model folder, as hubs show it: where the model comes from, under which licence,
// and what conversion changed. Source: https://huggingface.co/docs/hub/model-cards.
#pragma once

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

/// Facts about the written folder.
struct CardFacts {
  std::string family, dtype;      // by their names; "bfloat16"
  double rounding = 0;            // relative root mean square error of the weights; 0 = none
  std::vector<std::string> lost;  // what the folder lacks, one line each
};

/// Metadata of the checkpoint's own card or GGUF file carried over (base model, licence, languages,
/// tags), then a few lines of text. Of an input without a licence the card has none.
std::string model_card(const Checkpoint& checkpoint, const CardFacts& facts);

}  // namespace tessera::convert
