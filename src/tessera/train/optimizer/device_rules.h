// Update rules on another device than the CPU, in operations of libtorch: all but SOAP, Shampoo and
// moments in int8. Formulas as in the headers of the rules, states with the same names, so that a checkpoint can be
// resumed on any device.
#pragma once

#include <memory>
#include <span>

#include "tessera/ops/tensor.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

/// Why a rule is not available on other devices, with the remedy; "" if it is.
std::string no_device_reason(const RuleKeys& rule);

/// Its parameters, gradients and state are in the memory of `device`; `weights`: the initial values
/// of its parameters. Throws Error(usage) with no_device_reason().
std::unique_ptr<UpdateRule> device_rule(const RuleKeys& rule,
                                        std::vector<ParameterInfo> slots,
                                        at::Device device,
                                        std::span<const Parameter> weights);

}  // namespace tessera::train
