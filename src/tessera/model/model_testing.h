// Shared by tests of specs.
#pragma once

#include <string>

#include "tessera/base/testing.h"
#include "tessera/model/model_spec.h"

namespace tessera::model {

/// The error of reading a spec, "" if it is valid.
inline std::string error_of(const Json& json) {
  return test::error_of(ErrorKind::spec, [&] { read_model_spec(json); });
}

}  // namespace tessera::model
