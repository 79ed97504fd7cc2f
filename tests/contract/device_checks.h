// The check "device" of the contract suite, which needs the test device (fake_device.h).
#pragma once

#include "tessera/analysis/contract/checks.h"

namespace tessera::contract {

/// Results of a model on another device: forward, gradients, decoding.
void check_device(const Case& c, Report& report);

}  // namespace tessera::contract
