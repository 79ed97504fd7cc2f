#include "tessera/spec/plugin_files.h"

#include <cstdlib>
#include <sstream>

namespace tessera::spec {

std::vector<std::string> plugins_of_environment() {
  std::vector<std::string> files;
  const char* const list = std::getenv("TESSERA_PLUGINS");
  std::istringstream stream(list == nullptr ? "" : list);
  for (std::string file; std::getline(stream, file, ':');)
    if (!file.empty()) files.push_back(file);
  return files;
}

}  // namespace tessera::spec
