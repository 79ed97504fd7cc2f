// A model as a GGUF file holds it: metadata with the tokenizer, and tensors by llama.cpp's names.
// Torch-free.
#pragma once

#include <filesystem>

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

struct GgufModel {
  std::vector<format::GgufEntry> entries;
  std::vector<TensorView> tensors;
  std::string architecture;
  std::string widened;  // a matrix that was in fewer bits, in a form that GGUF lacks; "" = none
  std::vector<std::string> remarks;  // what is left out or changed, one line each
  /// An entry's value; null when there is none. `key` is without the architecture's prefix where it
  /// begins with a dot: ".block_count".
  const format::GgufValue* find(std::string_view key) const;
  int64_t integer_or(std::string_view key, int64_t otherwise) const;
  /// Replaces or adds.
  void set(const std::string& key, format::GgufValue value);
};

struct GgufModelOptions {
  std::filesystem::path families;
  std::string family;               // "" = the checkpoint's own
  std::filesystem::path tokenizer;  // a model or tokenizer; empty = where the checkpoint lies
};

/// Whether a tensor is one of the matrices that are stored in fewer bits; norms, biases, routers
/// and tables of positions are float32.
bool is_large_matrix(const TensorView& tensor);

/// Whether GGUF files can hold a tensor as it is: they know its type, and columns in their order.
bool has_gguf_form(const TensorView& tensor);

/// A GGUF file's own metadata and tensors.
GgufModel read_gguf_model(const std::filesystem::path& path);

/// A checkpoint in the family's GGUF dialect: norms and vectors as float32, matrices in the storage
/// type that they have. Throws Error(spec) where the family cannot say the model in GGUF,
/// Error(usage) where it has no such dialect, Error(file) where the tokenizer has no GGUF form.
GgufModel gguf_model_of(const Checkpoint& checkpoint, const GgufModelOptions& options = {});

/// The names that tensors have in the checkpoint's GGUF file, each with the parameters of ours that
/// it is made of. Throws as gguf_model_of() does.
std::vector<std::pair<std::string, std::vector<std::string>>> gguf_names(
    const Checkpoint& checkpoint, const GgufModelOptions& options = {});

/// Either, by what lies at the path.
GgufModel load_gguf_model(const std::filesystem::path& path,
                          const LoadOptions& loading = {},
                          const GgufModelOptions& options = {});

/// Every tensor as float32.
void widen(GgufModel& model);

/// One file or several (format::write_gguf_parts).
std::vector<std::filesystem::path> write_gguf_model(const GgufModel& model,
                                                    const std::filesystem::path& out,
                                                    int64_t part_bytes = 0);

}  // namespace tessera::convert
