// The family files that are built into the library, as text.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::convert {

struct EmbeddedFile {
  std::string_view name;  // without folder and extension
  std::string_view text;
};

const std::vector<EmbeddedFile>& embedded_family_files();
/// What families include: shared/*.json.
const std::vector<EmbeddedFile>& embedded_fragment_files();

}  // namespace tessera::convert
