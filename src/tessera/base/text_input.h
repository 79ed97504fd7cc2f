// Texts that a user names: files, and what only flows by.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/base/cancel.h"

namespace tessera {

/// The whole of a file, a pipe or device ("/dev/stdin", process substitution), or of standard input
/// ("-"). Waits for who writes a pipe, until `cancel`, which may be null. Throws Error(file) when
/// it is missing, a folder, unreadable or over `limit` bytes.
std::string read_text_input(const std::filesystem::path& path,
                            const CancelToken* cancel = nullptr,
                            size_t limit = size_t{1} << 30);

}  // namespace tessera
