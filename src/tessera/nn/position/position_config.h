// What every position scheme answers without computing.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct PositionConfig : spec::Config {
  /// Whether values at a position change with the total length (dynamic NTK): then there is no
  /// state.
  virtual bool depends_on_length() const { return false; }
  /// The length at which all angles change (LongRoPE), 0 = none: a cache is recomputed there.
  virtual int64_t switch_length() const { return 0; }
  /// Positions this scheme can represent, 0 = any.
  virtual int64_t max_positions() const { return 0; }

 protected:
  /// Refuses a scheme that acts elsewhere than the parent asks.
  static void require_place(spec::Place acts,
                            std::string_view name,
                            const spec::Scope& scope,
                            std::string_view remedy) {
    if (scope.places.offers(acts)) return;
    fail(ErrorKind::spec, scope.path, "position \"{}\" acts on {}, but this place offers {}; {}",
         name, spec::name_of(acts), scope.places.text(), remedy);
  }
};

}  // namespace tessera::nn
