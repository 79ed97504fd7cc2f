#include "tessera/infer/sampling/seed.h"

#include <charconv>
#include <random>

namespace tessera::infer {

uint64_t fresh_seed() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) & ((uint64_t{1} << 48) - 1);
}

std::optional<uint64_t> seed_of(std::string_view given) {
  if (given == "-1") return fresh_seed();
  const char *const begin = given.data(), *const end = begin + given.size();
  uint64_t seed = 0;
  const auto read = std::from_chars(begin, end, seed);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return seed;
}

}  // namespace tessera::infer
