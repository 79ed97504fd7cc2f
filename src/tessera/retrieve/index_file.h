// An index on disk: passages of texts, each with its vector. Torch-free.
//
//   INDEX/index.json             which model made the vectors, how texts were cut, the files, and
//                                the names of the other two
//   INDEX/passages-N.jsonl       a passage a line: file, place and text
//   INDEX/vectors-N.safetensors  "vectors" float32 [passages, width], each of length 1
//
// index.json comes last and replaces the old one in one step: an index is whole at any moment.
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
  std::string model;  // that embeds: its path as it was given
  std::string print;  // of its weights and of how it embeds
  int64_t width = 0;
  PassageOptions cut;
  std::vector<File> files;
  std::vector<Passage> passages;
  format::TensorView vectors;  // [passages, width]

  /// "notes/a.md:3-10".
  std::string source(const Passage& passage) const;
};

/// Throws Error(file) for what is no index, or one whose parts do not agree.
IndexFile open_index(const std::filesystem::path& folder);

/// Writes all of it, in place of an index that is there. Throws Error(resource), and then leaves
/// the old one as it was; Error(usage) for a folder that holds something else.
void write_index(const std::filesystem::path& folder, const IndexFile& index);

}  // namespace tessera::retrieve
