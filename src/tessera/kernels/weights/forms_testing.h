// Every form of a product on this processor, for tests.
#pragma once

#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/tiles.h"

namespace tessera::kernels {

/// Runs body on the default choice of targets, which may have products of bytes or tiles beyond
/// every named target, then without tiles, then on every target.
template <class Body>
void on_every_form(const Body& body) {
  {
    SCOPED_TRACE("best");
    body();
  }
  if (use_tiles()) {
    SCOPED_TRACE("without tiles");
    const WithoutTiles scope;
    body();
  }
  on_every_target(body);
}

}  // namespace tessera::kernels
