// Checkpoints of rwkv.cpp: the container that ggml files had before GGUF, with the magic "ggmf".
//
//   int32 magic, version, n_vocab, n_embed, n_layer, data type; then until the end of the file
//   int32 axes, name length, data type, the axes from the fastest; the name; the data
//
// Which architecture a file holds follows from the names of its tensors alone. Reads never copy:
// tensors point into the mapped file. All of the structure is checked on opening; errors are
// Error(file), one line, with the byte offset. Limits: 262,144 tensors, 1 to 3 axes, names of 1 to
// 1,024 bytes. Source: https://github.com/RWKV/rwkv.cpp, docs/FILE_FORMAT.md and
// rwkv_file_format.inc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

/// The first four bytes of such a file.
inline constexpr uint32_t kGgmfMagic = 0x67676d66;

struct GgmfHeader {
  int64_t version = 101;  // 100 has the block types of an older ggml, which are refused
  int64_t n_vocab = 0;
  int64_t n_embed = 0;
  int64_t n_layer = 0;
  std::string data_type;  // of most matrices: "F32", "F16", "Q5_1"
};

struct GgmfFile {
  GgmfHeader header;
  /// In the order of the file. Q8_1 and Q8_K, with which nothing computes, are listed by
  /// TensorFile::unsupported().
  TensorFile tensors;
};

GgmfFile open_ggmf(const std::filesystem::path& path);

/// The same from memory; `file` is named in messages, `owner` is kept by every view.
GgmfFile read_ggmf(std::span<const std::byte> bytes,
                   std::string_view file,
                   std::shared_ptr<const void> owner = {});

}  // namespace tessera::format
