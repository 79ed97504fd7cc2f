// Scales of channels between matrices (AWQ: Lin et al. 2023, arXiv:2306.00978): columns that
// multiply large inputs are made larger before they are rounded, and what gives these inputs
// smaller, so that the model stays the same. Torch-free.
#pragma once

#include "tessera/convert/quantize.h"

namespace tessera::convert {

struct InputScaling {
  /// By the tensor whose columns were multiplied: by what.
  std::map<std::string, std::vector<float>, std::less<>> scales;
  std::vector<std::string> notes;  // inputs that nothing before could take the scales of

  /// What is known of the inputs as they have become.
  Importance importance(Importance before) const;
  InputProductsOf products(InputProductsOf before) const;
};

/// The tensors whose products are asked for, in that order.
std::vector<std::string> scaling_products(const GgufModel& model);

/// s_i = (root mean square of input i)^alpha, alpha of 0, 0.05, .. 0.95 as it leaves the least
/// error of products with the inputs that were seen, for the matrices after each norm, and after
/// attention's values and the ungated half of a feed-forward layer where these give each input one
/// by one. Changed tensors become float32. Throws Error(usage) for an architecture whose matrices
/// it does not know.
InputScaling scale_inputs(GgufModel& model,
                          const QuantizeReport& report,
                          const InputProductsOf& products);

/// The same by given factors of every group of matrices, [k] each: what must leave the model as it
/// was, whatever they are.
using ScalesOf = std::function<std::vector<float>(const std::string& reader, int64_t k)>;
InputScaling scale_inputs_by(GgufModel& model, const ScalesOf& scales);

}  // namespace tessera::convert
