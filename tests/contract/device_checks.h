// The checks "device" and "recorded" of the contract suite, which need the test device
// (fake_device.h).
#pragma once

#include "tessera/analysis/contract/checks.h"

namespace tessera::contract {

/// Results of a model on another device: forward, gradients, decoding.
void check_device(const Case& c, Report& report);
/// Decoding steps that are recorded and replayed (model/recorded_steps.h), where the model has
/// them: the results of the same calls one operation at a time.
void check_recorded(const Case& c, Report& report);

}  // namespace tessera::contract
