// Whether something is a GGUF file, by how it begins.
#pragma once

#include <filesystem>
#include <string_view>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"

namespace tessera::format {

inline constexpr std::string_view kGgufBegin = "GGUF";

inline bool is_gguf(std::string_view bytes) {
  return bytes.starts_with(kGgufBegin);
}
/// The same of a file. Throws Error(file) where there is none.
inline bool is_gguf(const std::filesystem::path& file) {
  return is_gguf(text_of(MappedFile::open(file)->bytes()));
}

}  // namespace tessera::format
