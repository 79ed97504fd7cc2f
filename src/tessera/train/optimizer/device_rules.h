// Update rules on another device than the CPU, in operations of libtorch over lists of tensors:
// AdamW and Adam with float32 moments, SGD, Lion. Formulas as in adamw.h, sgd.h and lion.h, states
// with the same names, so that a checkpoint can be resumed on any device.
#pragma once

#include <memory>

#include "tessera/ops/tensor.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

/// Why a rule is not available on other devices, with the remedy; "" if it is.
std::string no_device_reason(const RuleKeys& rule);

/// Its parameters, gradients and state are in the memory of `device`. Throws Error(usage) with
/// no_device_reason().
std::unique_ptr<UpdateRule> device_rule(const RuleKeys& rule,
                                        std::vector<ParameterInfo> slots,
                                        at::Device device);

}  // namespace tessera::train
