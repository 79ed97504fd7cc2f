// NumPy's .npy: one array a file, versions 1.0 and 2.0, C order, little-endian.
//
// Types: f64 f32 f16 i64 i32 i16 i8 u8 bool (NumPy has no bf16). The data must fill the file
// exactly. Errors: Error(file), one line. Source: NumPy manual, numpy.lib.format.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

/// The view's name is the file's name without its extension.
TensorView open_npy(const std::filesystem::path& path);

/// The same from memory; `file` is named in messages and is the view's name.
TensorView read_npy(std::span<const std::byte> bytes,
                    std::string_view file,
                    std::shared_ptr<const void> owner = {});

/// Byte for byte what numpy.save writes (version 1.0). Throws Error(resource) when the disk is
/// full, leaving no part of the file; Error(usage) for types that NumPy does not have.
void write_npy(const std::filesystem::path& path, const TensorView& tensor);

}  // namespace tessera::format
