// Tokenizers: text to token ids and back.
//
//   const Tokenizer tokenizer = load_tokenizer("model-folder");
//   std::vector<int32_t> ids = tokenizer.encode("Hello world");
//   std::string text = tokenizer.decode(ids);
//
// Ids equal those of the Hugging Face `tokenizers` library (0.23) for the same tokenizer.json, with
// one intended difference: special tokens inside a text are ordinary text without `parse_special`,
// so that a prompt cannot inject them.
//
// Text is UTF-8; invalid bytes are replaced by U+FFFD first (the `bytes` type accepts every byte).
// Truncation and padding of a tokenizer.json are left to the code that makes batches;
// truncates_left() has the direction.
//
// A Tokenizer is an immutable value, cheap to copy and thread-safe. Errors: Error(file) for
// contents of a file, Error(input) for texts and ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/tokenizer/marked_text.h"

namespace tessera::text {

struct EncodeOptions {
  bool add_special = true;  // adds the model's special tokens around a text, such as begin-of-text
  bool parse_special = false;  // parses special tokens written in the text
};

struct AddedToken;      // added_tokens.h
struct TokenizerParts;  // tokenizer_parts.h
class TokenizerState;   // shared and immutable

class Tokenizer {
 public:
  /// For loaders; throws Error(file) if the parts contradict each other.
  explicit Tokenizer(TokenizerParts parts);

  /// Throws Error(input) for a text of more than 1 GiB, or one on which a pattern of the tokenizer
  /// exceeds its limits.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// Special tokens are parsed where none of their bytes is input; so are other added tokens in
  /// `guarded` (the template). Adds no special tokens.
  std::vector<int32_t> encode(const MarkedText& text, std::string_view guarded) const;

  /// Adds the special tokens of encode() with `add_special`.
  std::vector<int32_t> surround(std::span<const int32_t> ids) const;
  /// Two texts as one: with the special tokens around and between a pair.
  struct Pair {
    std::vector<int32_t> ids;
    size_t second = 0;  // start of the second text
  };
  Pair surround(std::span<const int32_t> first, std::span<const int32_t> second) const;

  /// Unused ids decode to nothing, because models often have more ids than tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  /// The token in the vocabulary's notation ("Ġworld"); throws Error(input) for an unused id.
  std::string_view token(int32_t id) const;
  std::optional<int32_t> id(std::string_view token) const;
  bool has(int32_t id) const;
  /// The bytes that a token adds to a text after other tokens, maybe part of a character; nullopt
  /// for special tokens and unused ids.
  std::optional<std::string> bytes_of(int32_t id) const;
  /// Tokens that are found before tokenization of the rest.
  const std::vector<AddedToken>& added_tokens() const;
  /// One more than the largest id.
  int32_t vocab_size() const;
  bool is_special(int32_t id) const;
  /// The tokenizer of what an encoder reads: another vocabulary than the targets' where a model has
  /// two, this one otherwise.
  const Tokenizer& of_source() const;
  /// True if texts are truncated at the beginning: `truncation_side` of tokenizer_config.json,
  /// otherwise the direction of `truncation` in tokenizer.json.
  bool truncates_left() const;

  /// From a GGUF file, from tokenizer_config.json next to tokenizer.json, or otherwise the single
  /// token that is added before (bos) and after (eos) every text.
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> unk() const;
  std::optional<int32_t> pad() const;
  /// Stop tokens: eos() first, then those that a GGUF file names (end of turn, end of message).
  std::vector<int32_t> ends() const;
  /// Problems of the file that were ignored, a line each.
  const std::vector<std::string>& notes() const;
  /// Special tokens by role ("bos_token", "cls_token", "image_token", ...), for chat templates.
  const std::vector<std::pair<std::string, std::string>>& special_roles() const;
  /// Source of the chat template, "" if there is none.
  const std::string& chat_template() const;
  /// The template for conversations with tools, if it differs.
  const std::string& tool_template() const;

 private:
  friend class StreamDecoder;
  friend Tokenizer with_lower_case(const Tokenizer& tokenizer);
  friend Tokenizer with_chat_template(const Tokenizer& tokenizer, std::string source);
  std::shared_ptr<const TokenizerState> state_;
};

/// The same tokenizer with lower-casing before its own normalizer.
Tokenizer with_lower_case(const Tokenizer& tokenizer);

/// The same tokenizer with another chat template, also for conversations with tools.
Tokenizer with_chat_template(const Tokenizer& tokenizer, std::string source);

/// Streaming decoder. The concatenation of all push() and finish() results is decode() of the ids;
/// no part of it ends inside a UTF-8 character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  /// Processes preceding tokens (a prompt) without returning their text, so that the following
  /// tokens are decoded as a continuation; some tokenizers drop a space at the very start.
  void prime(std::span<const int32_t> ids);
  /// The text that is final after this token; may be empty.
  std::string push(int32_t id);
  /// The rest; an incomplete character becomes U+FFFD. Resets the decoder.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Loads a tokenizer.json, vocab.txt (vocab_file.h), tokenizer.model (sentence_piece.h), a folder
/// with one of them, with vocab.json and merges.txt (vocab_merges.h) or source.spm and target.spm
/// (the first is preferred), or a token score file (score_file.h), detected by content.
/// `vocab_size` is for the last format: the required number of tokens, 0 = any.
Tokenizer load_tokenizer(const std::filesystem::path& path, int32_t vocab_size = 0);

/// The file that load_tokenizer() reads in a folder, if any. Throws Error(file) if it is damaged.
std::optional<std::filesystem::path> tokenizer_file_in(const std::filesystem::path& folder);
/// That file, and the files next to it that affect tokenization; empty if there is none.
std::vector<std::filesystem::path> tokenizer_files_in(const std::filesystem::path& folder);
/// "tokenizer.json", "vocab.txt", "tokenizer.model" or "tokenizer.bin": the usual name of a
/// tokenizer file, by its content.
const char* tokenizer_file_name(std::string_view content);

}  // namespace tessera::text
