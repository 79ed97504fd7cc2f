// Text with the origin of each byte, to prevent prompt injection.
#pragma once

#include <string>

namespace tessera::text {

struct MarkedText {
  std::string text;
  std::string input;        // of each byte: 1 for untrusted input, else 0
  std::string answer = {};  // of each byte: 1 for training targets; or empty
};

}  // namespace tessera::text
