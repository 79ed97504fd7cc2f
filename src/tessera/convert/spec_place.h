// Where a family file gives an entry of a spec. Private to this layer.
#pragma once

#include <string>
#include <string_view>

#include "tessera/spec/json.h"

namespace tessera::convert {

/// The entry that an error of a spec is about, "[layers[3].mixer.bias] what": of the template of the
/// merged family as far as that is written out ("spec.layers[0].item.mixer.bias"), or, at an
/// expression whose value the family's own file gives, that entry ("hf.read.positions",
/// "let.norm").
std::string spec_place(const spec::Json& merged, const spec::Json& own, std::string_view error);

}  // namespace tessera::convert
