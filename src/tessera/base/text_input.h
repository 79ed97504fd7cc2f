// Text inputs of the user: files, pipes and standard input.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/base/cancel.h"

namespace tessera {

/// The complete content of a file, a pipe or device ("/dev/stdin", process substitution), or of
/// standard input ("-"). Waits for the writer of a pipe, until `cancel`, which may be null. Throws
/// Error(file) if it is missing, a folder, unreadable or over `limit` bytes.
std::string read_text_input(const std::filesystem::path& path,
                            const CancelToken* cancel = nullptr,
                            size_t limit = size_t{1} << 30);

}  // namespace tessera
