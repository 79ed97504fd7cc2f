// Widths by rule: "8/3", "8/3, multiple of 256", "1.3 * 8/3, multiple of 4096".
#pragma once

#include "tessera/spec/mechanism.h"

namespace tessera::spec {

/// The width that a rule gives for d: its factors, each a number or a fraction a/b, act on d from
/// right to left, and what each gives is cut to a whole number; then it is rounded up to a multiple.
/// Of equal parameters as 4d of a plain layer is "8/3" of a gated one. Touvron et al. 2023,
/// arXiv:2302.13971 (released code). Throws Error(spec) naming `scope`.
int64_t width_by_rule(std::string_view rule, int64_t d, const Scope& scope);

}  // namespace tessera::spec
