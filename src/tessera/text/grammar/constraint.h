// Constrained decoding: the interface between languages (a grammar, a schema, a list of answers)
// and the choice of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::text {

/// State of a text within its language. Copies are independent.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;
  virtual std::unique_ptr<ConstraintState> clone() const = 0;

  /// Sets bit id % 64 of word id / 64 for every allowed next token, and clears all others. Stop
  /// tokens are not included: see may_end().
  virtual void allow(std::span<uint64_t> bits) const = 0;
  /// Advances by a token; returns false without a change if it is not allowed.
  virtual bool accept(int64_t id) = 0;
  /// True if the text may end here; if it must end here.
  virtual bool may_end() const = 0;
  virtual bool must_end() const = 0;
  /// For messages: what may follow, in words.
  virtual std::string expected() const = 0;
};

/// Immutable, thread-safe, shared by texts.
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
