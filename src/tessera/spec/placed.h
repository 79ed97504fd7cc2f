// Rules between consecutive parts of a stack.
#pragma once

#include <vector>

#include "tessera/spec/mechanism.h"

namespace tessera::spec {

/// A part and what surrounds it; scope.path is its place in the spec.
struct Placed {
  AnyPart part;
  Scope scope;
};

/// What a config implements with Config when its part reads what earlier parts of the stack
/// leave in the context of a call.
class ReadsEarlierParts {
 public:
  virtual ~ReadsEarlierParts() = default;
  /// `before`: mixers and feed-forward layers in the order in which they run. Throws Error(spec)
  /// with a reason and a suggestion when what the part reads is not among them.
  virtual void check_behind(const std::vector<Placed>& before, const Scope& scope) const = 0;
  /// Whether this config makes its part do so, or leave something for later ones.
  virtual bool shares() const { return true; }
};

}  // namespace tessera::spec
