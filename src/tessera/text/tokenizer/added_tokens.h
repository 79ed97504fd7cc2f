// Added tokens: strings that become one token wherever they occur, found before tokenization of the
// rest. Special ones (such as end-of-text) are searched only on request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/normalizer.h"

namespace tessera::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only as a whole word
  bool lstrip = false;       // includes white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // searched after normalization, in its normalized form
  bool special = false;
  bool decodes_normalized = false;  // was normalized in an earlier file; see AddedTokens::text()
};

AddedToken added_token_from_json(const spec::Json& value, const std::string& where);

/// A part of a text: a token, or text between tokens (id kNoToken).
struct Segment {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = 0;
};

/// Finds the longest of a set of texts at each position, leftmost first.
class TokenFinder {
 public:
  void add(std::string_view text, size_t value);
  bool empty() const { return edges_.empty(); }
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    size_t value = 0;
  };
  /// The next match at or after `from`.
  std::optional<Match> next(std::string_view text, size_t from) const;

 private:
  static constexpr size_t kNothing = static_cast<size_t>(-1);
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node; the root is 0
  std::vector<size_t> values_ = {kNothing};       // by node
  std::vector<bool> starts_ = std::vector<bool>(256);
};

/// Protects against special-token injection: which bytes of a text must not become control tokens.
struct Guard {
  std::string_view input;  // of each byte of the text: 1 for untrusted input
  std::string_view
      template_source;  // tokens in this text are protected in addition to special tokens
};

class AddedTokens {
 public:
  /// Throws Error(file) for a text that is too long, or a repeated id.
  AddedTokens(std::vector<AddedToken> tokens,
              const Normalizer* normalizer,
              const std::string& where);

  /// Splits `text` at tokens that are searched before (`normalized` = false) or after
  /// normalization. Without `parse_special`, special tokens stay text; so do protected tokens with
  /// a byte of input.
  std::vector<Segment> split(std::string_view text,
                             bool normalized,
                             bool parse_special,
                             const Guard* guard = nullptr) const;

  const AddedToken* by_id(int32_t id) const;
  const AddedToken* by_content(std::string_view content) const;
  /// The decoded form of an added token: its content, or its normalized form.
  std::string_view text(const AddedToken& token) const;
  const std::vector<AddedToken>& all() const { return tokens_; }
  /// True if input must not form this token.
  static bool guards(const Guard& guard, const AddedToken& token);

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string_view, size_t> by_content_;
  std::unordered_map<int32_t, std::string> texts_;  // by id, if it differs from the content
  TokenFinder raw_;
  TokenFinder normalized_;
};

}  // namespace tessera::text
