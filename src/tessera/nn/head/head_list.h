// The heads of a model: "heads" is a list, "head" a list of one. At most one of them gives logits
// and at most one pools.
#pragma once

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

struct HeadList {
  spec::AnyPart logits;  // may be absent
  spec::AnyPart pooler;  // may be absent
};

/// From the keys "head" or "heads" of a spec, `fallback` where there is neither. `embed` is the
/// embedding, whose vectors a tied head multiplies by. Throws Error(spec).
HeadList read_heads(const spec::Json& spec,
                    const spec::Json& fallback,
                    const spec::AnyPart& embed,
                    const spec::Scope& scope);

/// Writes "head", or "heads" where there is a pooler.
void dump_heads(const HeadList& heads, spec::Json& spec);

}  // namespace tessera::nn
