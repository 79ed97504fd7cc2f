// What tests of specs share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tessera/base/error.h"
#include "tessera/model/model_spec.h"

namespace tessera::model {

/// Why a spec is refused, "no error" when it is read.
inline std::string error_of(const Json& json) {
  try {
    read_model_spec(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::spec) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace tessera::model
