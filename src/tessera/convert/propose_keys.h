// Keys of a config for keys of a base: by the values that families read from them, then by the
// words of their names. Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// A draft of the base alone, with renames of keys.
Draft first_draft(Trial& trial, const std::string& base);

/// Keys that no family has for keys that the base reads. Whether any was taken.
bool infer_keys(Trial& trial, Draft& draft);

}  // namespace tessera::convert
