// What indexers (indexer.h, block_indexer.h) have in common: the calls that they serve, and the
// keys that a state holds for them.
#pragma once

#include <string>
#include <vector>

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// Throws Error where the tokens of a call are not causal and in order, or the loss by which the
/// part `name` learns, of factor `kl_loss`, would need whole documents.
inline void check_indexed_call(const std::string& name,
                               const Context& context,
                               const StateRows* rows,
                               double kl_loss) {
  if (!context.causal || context.batch->in_order())
    fail(ErrorKind::input, name, "found tokens {}; expected causal tokens in order",
         context.causal ? "that are given in an order" : "that see later ones");
  if (rows != nullptr && context.training && context.add_loss && kl_loss > 0)
    fail(ErrorKind::spec, name,
         "found a state that training carries on, and the KL loss (kl_loss = {}) is of whole "
         "documents; expected windows \"isolated\", or kl_loss 0",
         kl_loss);
}

/// The index keys of every document of the call, in parts that follow one another: those that the
/// rows hold in `slot`, to which the call's own, k_ND, are appended.
inline std::vector<std::vector<Tensor>> held_index_keys(const Tensor& k_ND,
                                                        const Batch& batch,
                                                        const StateRows* rows,
                                                        size_t slot) {
  const BySegment part(batch);
  std::vector<std::vector<Tensor>> held;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    if (rows == nullptr) {
      held.push_back({part(k_ND, i)});
      continue;
    }
    TokenBuffer& kept = (*rows)[i]->tokens(slot);
    require(kept.length() == batch.segments[i].start, "indexer",
            "the state holds {} keys, the call starts at {}", kept.length(),
            batch.segments[i].start);
    kept.append(part(k_ND, i));
    held.push_back(kept.spans(0, kept.length()));
  }
  return held;
}

}  // namespace tessera::nn
