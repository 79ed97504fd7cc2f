// Update rules on another device than the CPU, in operations of libtorch. Formulas as in the
// headers of the rules, states with the same names, so that a checkpoint can be resumed on any
// device.
#pragma once

#include <memory>
#include <span>

#include "tessera/ops/tensor.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

/// Its parameters, gradients and state are in the memory of `device`; `weights`: the initial values
/// of its parameters.
std::unique_ptr<UpdateRule> device_rule(const RuleKeys& rule,
                                        std::vector<ParameterInfo> slots,
                                        at::Device device,
                                        std::span<const Parameter> weights);

}  // namespace tessera::train
