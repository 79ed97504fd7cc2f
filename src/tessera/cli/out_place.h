// Where a verb writes: what stands there and is not the verb's own is written over only where it is
// told to.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Whether a file or folder is what a verb itself writes there: a run to resume, an index to
/// update.
using IsOwn = std::function<bool(const std::filesystem::path& out)>;

/// --force of a verb that writes.
void add_force(CLI::App& app, bool& force);

/// Throws Error(usage) where `out` is a file with bytes in it or a folder that is not empty, unless
/// `force`, or `own` knows it for the verb's. Devices, FIFOs and what is not there pass. To be
/// called before anything is read or computed.
void check_out_place(std::string_view verb,
                     const std::filesystem::path& out,
                     bool force,
                     const IsOwn& own = nullptr);

/// The same of a GGUF file in shards of `part_mib` MiB, 0 = one file.
void check_gguf_place(std::string_view verb,
                      const std::filesystem::path& out,
                      int64_t part_mib,
                      bool force);

/// Knows files of a table that a verb wrote before: a .npy file, or safetensors with that tensor.
IsOwn holds_array(std::string tensor);

/// Knows files by the text that a verb begins them with.
IsOwn begins_with(std::string text);

/// Whether a folder is a run of `train` or `finetune`.
bool is_run_folder(const std::filesystem::path& out);

}  // namespace tessera::cli
