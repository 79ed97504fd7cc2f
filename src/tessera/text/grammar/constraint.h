// What a text may be, said token by token: between those who know the language (a grammar, a
// schema, a list of answers) and those who choose tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::text {

/// Where a text stands within its language. A value: copies go on apart from each other.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;
  virtual std::unique_ptr<ConstraintState> clone() const = 0;

  /// Sets bit id % 64 of word id / 64 for every token that may come next, and clears all others.
  /// The tokens that end a text are none of its language: see may_end().
  virtual void allow(std::span<uint64_t> bits) const = 0;
  /// Goes on behind a token; false, and as it was, where that token may not come.
  virtual bool accept(int64_t id) = 0;
  /// Whether the text may end here, and whether nothing else is left to it.
  virtual bool may_end() const = 0;
  virtual bool must_end() const = 0;
  /// For messages: what may come next, in words.
  virtual std::string expected() const = 0;
};

/// Immutable, for many texts and threads.
class Constraint {
 public:
  virtual ~Constraint() = default;
  virtual std::unique_ptr<ConstraintState> start() const = 0;
};

inline bool has_bit(std::span<const uint64_t> bits, int64_t id) {
  return (bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}
inline void set_bit(std::span<uint64_t> bits, int64_t id) {
  bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

inline void clear_bit(std::span<uint64_t> bits, int64_t id) {
  bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
}

}  // namespace tessera::text
