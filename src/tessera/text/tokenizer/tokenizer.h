// Tokenizers: text to token ids and back.
//
//   const Tokenizer tokenizer = load_tokenizer("model-folder");
//   std::vector<int32_t> ids = tokenizer.encode("Hello world");
//   std::string text = tokenizer.decode(ids);
//
// Ids equal those of the Hugging Face `tokenizers` library (0.23) for the same tokenizer.json, with
// one difference by design: special tokens inside a text are ordinary text unless the caller asks
// for `parse_special`, so that a prompt cannot smuggle them in.
//
// Text is UTF-8; invalid bytes are replaced by U+FFFD before anything else (the `bytes` kind takes
// every byte as it is). Truncation and padding, which a tokenizer.json may also configure, are the
// business of whoever makes batches and are not applied here; truncates_left() has the direction.
//
// A Tokenizer is an immutable value, cheap to copy and safe to use from many threads.
// Errors: Error(file) for what a file holds, Error(input) for texts and ids.
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
  bool add_special = true;     // what the model expects around a text, such as begin-of-text
  bool parse_special = false;  // special tokens written out in the text become those tokens
};

struct AddedToken;      // added_tokens.h
struct TokenizerParts;  // tokenizer_parts.h
class TokenizerState;   // shared and immutable

class Tokenizer {
 public:
  /// For loaders; throws Error(file) when the parts contradict each other.
  explicit Tokenizer(TokenizerParts parts);

  /// Throws Error(input) for a text of more than 1 GiB, or one on which a pattern of the tokenizer
  /// exceeds its limits.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// Special tokens become those tokens where none of their bytes is input; so do other added ones
  /// that `guarded` (the template) spells. Nothing is put around the text.
  std::vector<int32_t> encode(const MarkedText& text, std::string_view guarded) const;

  /// With the tokens around that encode() adds by `add_special`.
  std::vector<int32_t> surround(std::span<const int32_t> ids) const;
  /// Two texts as one: what encode() adds around, and what the tokenizer puts between a pair.
  struct Pair {
    std::vector<int32_t> ids;
    size_t second = 0;  // where the second text begins
  };
  Pair surround(std::span<const int32_t> first, std::span<const int32_t> second) const;

  /// Ids that stand for no token decode to nothing, as models often have more ids than tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  /// The token as the vocabulary writes it ("Ġworld"); throws Error(input) when there is none.
  std::string_view token(int32_t id) const;
  std::optional<int32_t> id(std::string_view token) const;
  bool has(int32_t id) const;
  /// The bytes that a token adds to a text behind others, maybe part of a character; nothing for
  /// special tokens, and ids of none.
  std::optional<std::string> bytes_of(int32_t id) const;
  /// Tokens found in a text before the model sees the rest.
  const std::vector<AddedToken>& added_tokens() const;
  /// One more than the largest id.
  int32_t vocab_size() const;
  bool is_special(int32_t id) const;
  /// Whether a text that is too long loses its begin rather than its end: `truncation_side` of
  /// tokenizer_config.json, else the direction of `truncation` in tokenizer.json.
  bool truncates_left() const;

  /// Where known: from a GGUF, from tokenizer_config.json beside tokenizer.json, or, failing that,
  /// the one token that is put before (bos) and after (eos) every text.
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> unk() const;
  std::optional<int32_t> pad() const;
  /// Tokens that end an answer: eos() first, then those that a GGUF file names (end of turn, end of
  /// message).
  std::vector<int32_t> ends() const;
  /// One line for each thing of the file that is not as it should be and was passed over.
  const std::vector<std::string>& notes() const;
  /// Special tokens by the name of their role ("bos_token", "cls_token", "image_token", ...), as
  /// chat templates see them.
  const std::vector<std::pair<std::string, std::string>>& special_roles() const;
  /// Source of the chat template, "" when there is none.
  const std::string& chat_template() const;
  /// The one for conversations with tools, where it is another.
  const std::string& tool_template() const;

 private:
  friend class StreamDecoder;
  friend Tokenizer with_lower_case(const Tokenizer& tokenizer);
  friend Tokenizer with_chat_template(const Tokenizer& tokenizer, std::string source);
  std::shared_ptr<const TokenizerState> state_;
};

/// The same tokenizer for texts in lower case: characters are lowered before its own normalizer.
Tokenizer with_lower_case(const Tokenizer& tokenizer);

/// The same tokenizer with another chat template, for conversations with tools too.
Tokenizer with_chat_template(const Tokenizer& tokenizer, std::string source);

/// Decodes tokens as they come. The concatenation of what push() and finish() return is decode() of
/// the ids; no part of it ends inside a UTF-8 character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  /// Takes in what precedes (a prompt) without returning its text, so that what follows is decoded
  /// as a continuation; some kinds drop a space at the very start.
  void prime(std::span<const int32_t> ids);
  /// The text that is certain after this token; may be empty.
  std::string push(int32_t id);
  /// The rest; an incomplete character becomes U+FFFD. The decoder is then as new.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A tokenizer.json, a vocab.txt (vocab_file.h), a tokenizer.model (sentence_piece.h), a folder
/// that holds one of them or a vocab.json with merges.txt (vocab_merges.h; the first is preferred),
/// or a token score file (score_file.h), told apart by content. `vocab_size` is for the last kind:
/// how many tokens the file must hold, 0 = any.
Tokenizer load_tokenizer(const std::filesystem::path& path, int32_t vocab_size = 0);

/// The file that load_tokenizer() reads of a folder; nullopt when there is none.
std::optional<std::filesystem::path> tokenizer_file_in(const std::filesystem::path& folder);
/// That file, and those beside it that may change how a text is cut; empty when there is none.
std::vector<std::filesystem::path> tokenizer_files_in(const std::filesystem::path& folder);
/// "tokenizer.json", "vocab.txt", "tokenizer.model" or "tokenizer.bin": the kind of a tokenizer
/// file by its content, under the name that folders have it by.
const char* tokenizer_file_name(std::string_view content);

}  // namespace tessera::text
