// Output paths: files that the command did not write itself are overwritten only with --force.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// True if a file or folder is an earlier output of the command: a run to resume, an index to
/// update.
using IsOwn = std::function<bool(const std::filesystem::path& out)>;

/// --force of a command that writes.
void add_force(CLI::App& app, bool& force);

/// Throws Error(usage) if `out` is a file with content or a folder that is not empty, unless
/// `force` is set or `own` accepts it. Devices, FIFOs and missing paths pass. Call it before
/// anything is read or computed.
void check_out_place(std::string_view verb,
                     const std::filesystem::path& out,
                     bool force,
                     const IsOwn& own = nullptr);

/// The same for a GGUF file in shards of `part_mib` MiB, 0 = one file.
void check_gguf_place(std::string_view verb,
                      const std::filesystem::path& out,
                      int64_t part_mib,
                      bool force);

/// Accepts array files: a .npy file, or safetensors with that tensor.
IsOwn holds_array(std::string tensor);

/// Accepts files that begin with this text.
IsOwn begins_with(std::string text);

/// True if a folder is a run of `train` or `finetune`.
bool is_run_folder(const std::filesystem::path& out);

}  // namespace tessera::cli
