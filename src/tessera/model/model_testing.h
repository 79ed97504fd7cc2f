// What tests of specs share.
#pragma once

#include <string>

#include "tessera/base/testing.h"
#include "tessera/model/model_spec.h"

namespace tessera::model {

/// Why a spec is refused, "" when it is read.
inline std::string error_of(const Json& json) {
  return test::error_of(ErrorKind::spec, [&] { read_model_spec(json); });
}

}  // namespace tessera::model
