// Keys of a config for keys of a base: by the values that families read from them, then by the
// words of their names. Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// How well a key of the config and its value agree with a key of a base, by words and by the range
/// of numbers of its kind (epsilons, bases of rotations): 0 = they cannot be one, 1 = the same
/// words.
double key_agreement(std::string_view wanted, std::string_view key, const Json& value);
inline constexpr double kCertainKey = 0.75;  // of a key that other families read otherwise

/// A draft of the base alone, with renames of keys.
Draft first_draft(Trial& trial, const std::string& base);

/// Keys that no family has for keys that the base reads. Whether any was taken.
bool infer_keys(Trial& trial, Draft& draft);

}  // namespace tessera::convert
