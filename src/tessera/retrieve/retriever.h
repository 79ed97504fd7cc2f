// Passages that are near a question: an embedding model beside an index of its vectors.
//
//   const Retriever retriever("notes.index");
//   for (const Hit& hit : retriever.find("how are keys rotated?", 5)) print(hit.where, hit.text);
//
// The search is exact: one product of the question's vector with all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/infer/encoders/embed.h"
#include "tessera/retrieve/index_file.h"
#include "tessera/retrieve/text_files.h"

namespace tessera::retrieve {

/// A model that embeds, with what its folder says of it. Passages and questions have the prompts
/// that it names for them ("passage" or "document", "query"), else its default one.
class Embedder {
 public:
  explicit Embedder(const std::string& path,
                    const infer::LoadedModel* loaded = nullptr,
                    const convert::LoadOptions& loading = {});
  /// [texts, width], each of length 1.
  Tensor passages(const std::vector<std::string>& texts, const CancelToken* cancel) const;
  Tensor question(const std::string& text, const CancelToken* cancel) const;
  const text::Tokenizer& tokenizer() const { return *loaded_->tokenizer; }
  int64_t width() const;
  /// Tokens of a passage at most; 0 = any number.
  int64_t longest() const;
  /// Tells models, and ways to embed with them, apart.
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
  /// Called with how many of the passages have their vectors.
  std::function<void(size_t done, size_t all)> progress = {};
  const CancelToken* cancel = nullptr;
};

struct Indexed {
  IndexFile index;
  size_t kept = 0;  // passages whose vectors came from the index that was there
};

/// The passages of files with their vectors. Those of files that `before`, an index of the same
/// model and options, has already are taken from it. Throws Error(input) for files without text.
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
  /// `model`: instead of the one that the index names. Throws Error(usage) where that is another
  /// one than made it.
  explicit Retriever(const std::filesystem::path& index,
                     const std::string& model = "",
                     const convert::LoadOptions& loading = {});
  /// The nearest `k`, best first; of equals the one that was read first.
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
