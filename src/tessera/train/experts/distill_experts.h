// Distills mixtures of experts into dense layers that compute nearly the same on a text. Every
// layer is trained separately. It is initialized with the mean of the experts, weighted by their
// use (convert::merged_experts), and fits the outputs of the mixture for its inputs in the original
// model:
//   min sum_t |F(x_t) - MoE(x_t)|^2 / sum_t |MoE(x_t)|^2
// with AdamW on rows drawn from the first seven eighths of the text. The best weights on the last
// eighth are kept, the initial ones included. Hinton, Vinyals, Dean 2015, arXiv:1503.02531; of
// layers by their outputs: Romero et al. 2014, arXiv:1412.6550.
#pragma once

#include <functional>
#include <span>

#include "tessera/base/cancel.h"
#include "tessera/convert/experts.h"

namespace tessera::train {

struct DistillOptions {
  int64_t steps = 500;  // of every layer
  int64_t rows = 256;   // tokens a step
  double rate =
      0.02;  // of AdamW, relative to the size of a parameter; decays to a tenth along a cosine
  int64_t window =
      256;            // tokens of a document; fewer if the model's context or the text is shorter
  uint64_t seed = 0;  // of the rows
  const CancelToken* cancel = nullptr;
};

/// Result for one mixture, on the validation tokens: the root of the quotient above.
struct DistilledLayer {
  std::string mixture;                // "layers.3.ffn"
  int64_t learned = 0, held_out = 0;  // tokens
  double before = 0, after = 0;
};

/// Without `use`, the usage of experts is measured on the text. Calls `report` after every layer.
/// Throws Error(usage) as merged_experts() does, for an encoder-decoder and for a text of fewer
/// than 128 tokens.
convert::Checkpoint distilled_experts(const convert::Checkpoint& checkpoint,
                                      convert::ExpertLoads use,
                                      std::span<const int64_t> ids,
                                      const DistillOptions& options,
                                      const std::function<void(const DistilledLayer&)>& report);

}  // namespace tessera::train
