// The specs of zoo/, which the build compiles in.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::cli {

struct ZooFile {
  std::string_view name;  // path below zoo/, without extension
  std::string_view text;
};

const std::vector<ZooFile>& zoo_files();

}  // namespace tessera::cli
