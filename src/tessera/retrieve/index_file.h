// A vector index on disk: passages of texts with their embeddings. Torch-free.
//
//
//   INDEX/index.json             the embedding model, how texts were split, the files, and the
//   names
//                                of the other two
//   INDEX/passages-N.jsonl       a passage a line: file, position and text
//   INDEX/vectors-N.safetensors  "vectors" float32 [passages, width], normalized to length 1
//
// index.json is written last and replaces the old one atomically, so the index is complete at any
// time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/format/tensor_view.h"
#include "tessera/retrieve/passages.h"

namespace tessera::retrieve {

struct Passage {
  int64_t file = 0;  // IndexFile::files
  Span place;
  std::string text;
};

struct IndexFile {
  struct File {
    std::string path, sha256;
  };
  std::string model;  // path of the embedding model as given
  std::string print;  // fingerprint of its weights and embedding options
  int64_t width = 0;
  PassageOptions cut;
  std::vector<File> files;
  std::vector<Passage> passages;
  format::TensorView vectors;  // [passages, width]

  /// "notes/a.md:3-10".
  std::string source(const Passage& passage) const;
};

/// Throws Error(file) for a folder without an index, and for an index with inconsistent parts.
IndexFile open_index(const std::filesystem::path& folder);

/// Writes an index and replaces an existing one. Throws Error(resource) and leaves the old one
/// unchanged; Error(usage) for a folder with other files.
void write_index(const std::filesystem::path& folder, const IndexFile& index);

}  // namespace tessera::retrieve
