// Semantic search: finds the passages nearest to a question in a vector index.
//
//   const Retriever retriever("notes.index");
//   for (const Hit& hit : retriever.find("how are keys rotated?", 5)) print(hit.where, hit.text);
//
// The search is exact: one matrix product of all vectors with the question's vector.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/infer/encoders/embed.h"
#include "tessera/retrieve/index_file.h"
#include "tessera/retrieve/text_files.h"

namespace tessera::retrieve {

/// An embedding model with its settings. Passages and questions get the prompts that it defines for
/// them ("passage" or "document", "query"), otherwise its default prompt.
class Embedder {
 public:
  explicit Embedder(const std::string& path,
                    const infer::LoadedModel* loaded = nullptr,
                    const convert::LoadOptions& loading = {});
  /// [texts, width], normalized to length 1.
  Tensor passages(const std::vector<std::string>& texts, const CancelToken* cancel) const;
  Tensor question(const std::string& text, const CancelToken* cancel) const;
  const text::Tokenizer& tokenizer() const { return *loaded_->tokenizer; }
  int64_t width() const;
  /// Max. tokens of a passage; 0 = no limit.
  int64_t longest() const;
  /// Fingerprint of the model and its embedding options.
  std::string print() const;

 private:
  Tensor vectors(const std::vector<std::string>& texts,
                 const std::string& prompt,
                 const CancelToken* cancel) const;
  std::string prompt_of(std::initializer_list<const char*> names) const;

  std::unique_ptr<infer::LoadedModel> own_;
  const infer::LoadedModel* loaded_;
  infer::EmbedOptions options_;
};

struct IndexOptions {
  PassageOptions cut;
  /// Progress: number of embedded passages.
  std::function<void(size_t done, size_t all)> progress = {};
  const CancelToken* cancel = nullptr;
};

struct Indexed {
  IndexFile index;
  size_t kept = 0;  // passages with vectors from the existing index
};

/// Embeds the passages of files. Passages of files in `before`, an index of the same model and
/// options, are reused. Throws Error(input) for files without text.
Indexed make_index(const std::string& model,
                   const Embedder& embedder,
                   const std::vector<std::string>& files,
                   const IndexFile* before,
                   const IndexOptions& options);

struct Hit {
  double score = 0;  // cosine
  std::string where, text;
};

class Retriever {
 public:
  /// `model`: replaces the path in the index. Throws Error(usage) if the index was made with
  /// another model.
  explicit Retriever(const std::filesystem::path& index,
                     const std::string& model = "",
                     const convert::LoadOptions& loading = {});
  /// The `k` nearest passages, best first; ties go to the first in the index.
  std::vector<Hit> find(const std::string& question,
                        int64_t k,
                        const CancelToken* cancel = nullptr) const;
  const IndexFile& index() const { return index_; }

 private:
  IndexFile index_;
  Embedder embedder_;
  Tensor vectors_RD_;
};

}  // namespace tessera::retrieve
