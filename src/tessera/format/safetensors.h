// safetensors: 8 bytes of header length, a JSON header, then the bytes of all tensors without gaps.
//
// The reader is at least as strict as the reference library (PyPI safetensors 0.8): whatever that
// refuses is refused here, and beyond it: duplicate names, unknown keys of a tensor, a header that
// does not begin with '{'. tests/golden/formats/safetensors_cases.json holds both verdicts.
// Reads never copy: views point into the mapped file. Errors: Error(file), one line.
// Source: https://github.com/huggingface/safetensors#format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

/// Supported types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL. Tensors of the other types of the
/// format (F8_*, F4, U16, C64, ...) are checked and listed by TensorFile::unsupported(); an unknown
/// type name is an error. Tensors come in the order of their bytes.
TensorFile open_safetensors(const std::filesystem::path& path);

/// The same from memory; `file` is named in messages, `owner` is kept by every view.
TensorFile read_safetensors(std::span<const std::byte> bytes,
                            std::string_view file,
                            std::shared_ptr<const void> owner = {});

/// A model folder, read as transformers reads it: model.safetensors, else every tensor of the
/// shards that model.safetensors.index.json names; other *.safetensors files are ignored. A line in
/// `notes` lists what was left out: an index next to the whole file, names that the index lists and
/// no shard holds. One name with two values in two shards is an error. Metadata is that of all
/// shards; where two disagree on a key, the first by file name wins.
TensorFile open_safetensors_folder(const std::filesystem::path& folder,
                                   std::vector<std::string>* notes = nullptr);

/// Byte for byte what the reference library writes: wide types first, then by name, so that every
/// tensor is aligned; same input, same file. Throws Error(resource) when the disk is full, and then
/// leaves neither a part of the new file nor a damaged old one; Error(usage) for what the format
/// cannot hold (GGUF block types, names that repeat or are not UTF-8).
void write_safetensors(const std::filesystem::path& path,
                       std::span<const TensorView> tensors,
                       const StringMap& metadata = {});

/// Writes model.safetensors, or when that would hold more than `max_shard_bytes` of tensors,
/// model-00001-of-0000N.safetensors ... with an index, tensors in the given order. A tensor is
/// never split. Nothing is renamed into place before all is on disk. The other form (single file or
/// index), if the folder held one, is removed. Returns the files written.
std::vector<std::filesystem::path> write_safetensors_folder(const std::filesystem::path& folder,
                                                            std::span<const TensorView> tensors,
                                                            const StringMap& metadata = {},
                                                            int64_t max_shard_bytes = int64_t{5}
                                                                                      << 30);

}  // namespace tessera::format
