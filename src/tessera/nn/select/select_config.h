// Sparse attention by content: a part next to the queries that chooses, for every query, the keys
// that it attends to. The mixer computes its softmax over these alone.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/placed.h"

namespace tessera::nn {

struct SelectConfig : spec::Config {
  /// Keys that the query after `context` - 1 tokens attends to.
  virtual int64_t keys_met(int64_t context) const = 0;
  /// Whether it takes the keys of an earlier layer, or leaves its own for later ones.
  virtual bool shares() const { return false; }
  /// spec::ReadsEarlierParts::check_behind of the mixer that holds it, at scope.path.
  virtual void check_behind(const std::vector<spec::Placed>& /*before*/, const spec::Scope&) const {
  }
};

/// Of a mixer whose keys `select` chooses. Throws Error(spec) where it does not fit its
/// surroundings.
void check_select(const spec::AnyPart& select,
                  const spec::AnyPart& pattern,
                  const spec::AnyPart& position,
                  const spec::Scope& scope);
/// The surroundings of the part: queries are projected from `query_width` channels.
spec::Scope select_scope(spec::Scope scope, int64_t query_width, const spec::AnyPart& position);

/// The mixer's declarations, followed by the part's.
std::vector<spec::StateDecl> with_select_state(std::vector<spec::StateDecl> decls,
                                               const spec::AnyPart& select,
                                               const spec::Scope& scope);

}  // namespace tessera::nn
