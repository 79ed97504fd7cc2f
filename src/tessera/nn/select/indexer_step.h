// The decoding step of a lightning indexer (select_step.h): every segment after the tokens of its
// row. Keys are scored where they lie, in the pages of the state.
#pragma once

#include <string>

#include "tessera/nn/select/indexer.h"
#include "tessera/nn/select/select_step.h"

namespace tessera::nn {

/// The weights and parts of an indexer; without weights it shares the choice of an earlier layer.
struct IndexerParts {
  const IndexerConfig& config;
  const Linear &q, &k, &weights;
  const Norm* k_norm;
  const Position& position;
};

/// The name under which a call holds the choice `name` (LayerValues).
inline std::string selected_keys_name(const std::string& name) {
  return "selected keys " + name;
}

/// `parts` outlive it.
std::shared_ptr<const SelectStep> indexer_step(const IndexerParts& parts, StepWeights& weights);

}  // namespace tessera::nn
