// Tokens of many documents in memory-mapped shards. Torch-free.
//
// A folder NAME.tokens/ holds 00000.bin, 00001.bin, ... (u16 or u32, little-endian, kShardTokens
// each but the last), ends.bin (i64 per document: tokens up to and with it) and index.json (counts
// and sizes).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"

namespace tessera::train {

inline constexpr int64_t kShardTokens = int64_t{1} << 26;

class TokenSplit {
 public:
  TokenSplit() = default;
  /// Throws Error(file) if the folder is incomplete.
  static TokenSplit open(const std::filesystem::path& folder);

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(ends_.size()); }
  /// Bytes of the tokens' text, without separators.
  int64_t text_bytes() const { return text_bytes_; }
  /// Copies tokens begin .. begin + out.size() - 1; throws Error(internal) past the end.
  void read(int64_t begin, std::span<int64_t> out) const;
  /// The end of the document with token `index` (one past its last token).
  int64_t document_end(int64_t index) const;
  /// The number of the document with token `index`.
  int64_t document_of(int64_t index) const;
  /// The first token of document `index`, and its number of tokens.
  std::pair<int64_t, int64_t> document(int64_t index) const;

 private:
  std::vector<std::shared_ptr<const MappedFile>> shards_;
  std::shared_ptr<const MappedFile> ends_file_;
  std::span<const int64_t> ends_;
  int64_t tokens_ = 0, text_bytes_ = 0;
  int width_ = 2;  // bytes per token
};

/// Writes such a folder. Destroyed before finish(), it leaves an incomplete folder that open()
/// refuses.
class TokenWriter {
 public:
  /// Ids of a vocabulary of `vocab` tokens; u16 if they fit. Throws Error(resource) if the disk is
  /// full.
  TokenWriter(std::filesystem::path folder, int64_t vocab);
  void append(std::span<const int32_t> ids);
  /// Ends a document of `text_bytes` bytes; one without tokens is skipped.
  void end_document(int64_t text_bytes);
  void finish();
  int64_t tokens() const { return tokens_; }

 private:
  void flush();

  std::filesystem::path folder_;
  int64_t vocab_;
  int width_;
  int64_t tokens_ = 0, text_bytes_ = 0;
  std::vector<int64_t> ends_;
  std::vector<uint32_t> held_;  // not yet written
  std::unique_ptr<OutputFile> shard_;
  int64_t shard_tokens_ = 0;
  int shards_ = 0;
};

}  // namespace tessera::train
