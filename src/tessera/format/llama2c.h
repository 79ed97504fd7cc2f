// Checkpoints of karpathy/llama2.c, the first ("legacy") format: seven int32, then float32 arrays
// in one fixed order, named here as Meta's Llama names them.
//
// The size of the file must be exactly what the header implies. Errors: Error(file), one line.
// Source: https://github.com/karpathy/llama2.c, export.py (legacy_export) and run.c.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

struct Llama2cHeader {
  int64_t dim = 0;
  int64_t hidden_dim = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;     // divides dim, into heads of an even size
  int64_t n_kv_heads = 0;  // divides n_heads
  int64_t vocab_size = 0;
  int64_t seq_len = 0;
  bool tied_head = true;  // "untied" is encoded by a negative vocabulary size

  int64_t head_size() const { return dim / n_heads; }
  int64_t kv_dim() const { return head_size() * n_kv_heads; }
};

struct Llama2cFile {
  Llama2cHeader header;
  /// tok_embeddings.weight [C,D]; layers.{i}.attention_norm.weight [D], .attention.wq.weight [D,D],
  /// .wk and .wv [kv_dim,D], .wo [D,D], .ffn_norm.weight [D], .feed_forward.w1.weight [F,D],
  /// .w2 [D,F], .w3 [F,D]; norm.weight [D]; freq_cis_real and freq_cis_imag [seq_len, head_size/2];
  /// output.weight [C,D] when untied. In the order of the file.
  TensorFile tensors;
};

Llama2cFile open_llama2c(const std::filesystem::path& path);

/// The same from memory; `file` is named in messages, `owner` is kept by every view.
Llama2cFile read_llama2c(std::span<const std::byte> bytes,
                         std::string_view file,
                         std::shared_ptr<const void> owner = {});

/// Whether the bytes begin with a header whose numbers fit together: such a file has no magic.
bool begins_as_llama2c(std::span<const std::byte> bytes);

}  // namespace tessera::format
