// Random seeds as users give them: 0 to 2^64 - 1. -1 asks for a fresh one, as in llama.cpp and its
// clients.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::infer {

/// A seed from the system's entropy, below 2^48: clients that hold numbers as doubles return it
/// unchanged.
uint64_t fresh_seed();

/// The seed that a text means: a fresh one for -1, a whole number from 0 to 2^64 - 1 itself;
/// nothing for other text.
std::optional<uint64_t> seed_of(std::string_view given);

}  // namespace tessera::infer
