// What mixers with heads ask of their numbers.
#pragma once

#include <fmt/format.h>

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

/// Throws Error(spec) where head_dim is left to follow from the heads, and they leave a rest of the
/// `width` channels.
inline void require_heads_divide(int64_t head_dim,
                                 int64_t n_heads,
                                 int64_t width,
                                 const spec::Scope& scope,
                                 std::string_view heads = "n_heads") {
  if (head_dim == 0 && width % n_heads != 0)
    fail(ErrorKind::spec, scope.path,
         "{} = {} does not divide {} = {}; give head_dim, or another n_heads", heads, n_heads,
         width == scope.d_model ? "d_model" : "the inputs' width", width);
}

/// Throws Error(spec) where key/value heads do not share out the query heads evenly.
inline void require_groups(int64_t n_kv_heads, int64_t n_heads, const spec::Scope& scope) {
  if (n_heads % n_kv_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_kv_heads = {} does not divide n_heads = {}", n_kv_heads,
         n_heads);
}

}  // namespace tessera::nn
