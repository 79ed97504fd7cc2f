// Random seeds as users give them: 0 to 2^64 - 1. -1 requests a random seed, as in llama.cpp and
// its clients.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::infer {

/// A seed from the system's entropy, below 2^48: clients that store numbers as doubles return it
/// unchanged.
uint64_t fresh_seed();

/// Parses a seed: -1 gives a random seed, an integer from 0 to 2^64 - 1 itself; nullopt for other
/// text.
std::optional<uint64_t> seed_of(std::string_view given);

}  // namespace tessera::infer
