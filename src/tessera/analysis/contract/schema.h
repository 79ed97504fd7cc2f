// Just enough of JSON Schema to validate the toolkit's own schemas.
#pragma once

#include <string>

#include "tessera/spec/json.h"

namespace tessera::contract {

/// "" when `value` satisfies `schema`, else the first violation. $ref resolves under `root`. Fails
/// on keywords it does not know.
std::string violation(const spec::Json& value,
                      const spec::Json& schema,
                      const spec::Json& root,
                      const std::string& path = "$");

/// The type of a property, the first where it may have several, "" where it is no type's.
std::string first_type(const spec::Json& property);

}  // namespace tessera::contract
