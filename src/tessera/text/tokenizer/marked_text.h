// A text of which some bytes came from outside.
#pragma once

#include <string>

namespace tessera::text {

struct MarkedText {
  std::string text;
  std::string input;        // of each byte: 1 where it came from outside, else 0
  std::string answer = {};  // of each byte: 1 where it is what a model learns to say; or empty
};

}  // namespace tessera::text
