// How keys of a foreign config are taken that the family of a checkpoint does not know.
#pragma once

#include <string>
#include <vector>

namespace tessera::convert {

struct KeyOptions {
  bool strict = false;                   // refuse those that no family gives a meaning
  std::vector<std::string> ignore = {};  // as if the config had none of these; "*" = any text
};

}  // namespace tessera::convert
