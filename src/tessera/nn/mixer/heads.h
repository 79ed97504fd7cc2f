// The heads of attention, and what mixers with heads ask of their numbers.
#pragma once

#include <fmt/format.h>

#include "tessera/spec/fields.h"

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

/// Query heads that share key/value heads in groups (MHA, GQA, MQA): query head h reads key/value
/// head floor(h * n_kv_heads / n_heads).
struct HeadsConfig {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;

  static constexpr auto fields(
      const char* head_dim_doc = "width of one head; 0 = d_model / n_heads",
      const char* n_kv_heads_doc = "key/value heads, divides n_heads; 0 = n_heads (MHA), 1 = MQA") {
    using C = HeadsConfig;
    using spec::field;
    return std::tuple{field("n_heads", &C::n_heads, "query heads", {.min = 1, .required = true}),
                      field("n_kv_heads", &C::n_kv_heads, n_kv_heads_doc, {.min = 0}),
                      field("head_dim", &C::head_dim, head_dim_doc, {.min = 0})};
  }
  /// Width of one head of a mixer that reads `width` channels.
  int64_t width_of_head(int64_t width) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? width / n_heads : 0;
  }
  /// Fills what 0 leaves open. Throws Error(spec) as require_heads_divide().
  void complete_heads(int64_t width, const spec::Scope& scope) {
    require_heads_divide(head_dim, n_heads, width, scope);
    head_dim = width_of_head(width);
    if (n_kv_heads == 0) n_kv_heads = n_heads;
  }
};

}  // namespace tessera::nn
