// The version of tessera; CMakeLists.txt reads it here.
#pragma once

namespace tessera {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace tessera
