// What to say of a path that holds no model: what lies there, and what is expected.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::convert {

/// Of a folder without tensors that tessera reads. Throws Error(file): weights in another format,
/// under another name, partly downloaded, or none at all.
[[noreturn]] void refuse_folder(const std::filesystem::path& folder);

/// Of tensors without a spec and without a config.json. Throws Error(file).
[[noreturn]] void refuse_without_spec(const std::filesystem::path& folder);

/// Of a file of no known format that begins with `text`. Throws Error(file).
[[noreturn]] void refuse_file(const std::filesystem::path& path, std::string_view text);

/// Of a spec given for a model that has its own; nothing where `spec` is empty. Throws
/// Error(usage).
void refuse_second_spec(const std::filesystem::path& spec, const std::filesystem::path& model);

}  // namespace tessera::convert
