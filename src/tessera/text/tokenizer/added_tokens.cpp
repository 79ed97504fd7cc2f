#include "tessera/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/model.h"
#include "tessera/text/tokenizer_files/json_object.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// A search may look at this many bytes from every position of a text.
constexpr size_t kMaxContentBytes = 1024;

bool starts_with_word(std::string_view text) {
  if (text.empty()) return false;
  const size_t length = character_length(text, 0);
  return length > 0 && is_word_character(code_point_at(text, 0, length));
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && starts_with_word(text.substr(last_character(text)));
}

bool is_blank_at(std::string_view text, size_t at) {
  const size_t length = character_length(text, at);
  return length > 0 && is_white_space(code_point_at(text, at, length));
}

size_t begin_of_white_space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t at = last_character(text.substr(0, end));
    if (!is_blank_at(text, at)) break;
    end = at;
  }
  return end;
}

size_t end_of_white_space_after(std::string_view text, size_t begin) {
  while (begin < text.size() && is_blank_at(text, begin)) begin += character_length(text, begin);
  return begin;
}

}  // namespace

AddedToken added_token_from_json(const spec::Json& value, const std::string& where) {
  const JsonObject object(
      value, where, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  const int64_t id = object.integer("id");
  if (id < 0 || id > static_cast<int64_t>(kMaxTokens))
    fail(ErrorKind::file, where, "id = {}; expected 0 to {}", id, kMaxTokens);
  token.id = static_cast<int32_t>(id);
  token.content = object.string("content");
  token.special = object.boolean("special", false);
  token.single_word = object.boolean("single_word", false);
  token.lstrip = object.boolean("lstrip", false);
  token.rstrip = object.boolean("rstrip", false);
  token.normalized = object.boolean("normalized", !token.special);
  return token;
}

void TokenFinder::add(std::string_view text, size_t value) {
  if (text.empty()) return;
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const uint64_t edge = (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
    const auto [found, is_new] = edges_.emplace(edge, static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(kNothing);
    node = found->second;
  }
  if (values_[node] == kNothing) values_[node] = value;  // of equal texts the first is used
}

std::optional<TokenFinder::Match> TokenFinder::next(std::string_view text, size_t from) const {
  if (empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto edge = edges_.find((uint64_t{node} << 8) | static_cast<uint8_t>(text[at]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (values_[node] != kNothing) longest = Match{begin, at + 1, values_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens,
                         const Normalizer* normalizer,
                         const std::string& where) {
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  // special ones first: of two tokens with one normalized form they win
  std::stable_partition(tokens.begin(), tokens.end(),
                        [](const AddedToken& t) { return t.special; });
  tokens_ = std::move(tokens);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (token.content.size() > kMaxContentBytes)
      fail(ErrorKind::file, where, "added token {} has {} bytes; at most {} are accepted", token.id,
           token.content.size(), kMaxContentBytes);
    if (!by_id_.emplace(token.id, i).second)
      fail(ErrorKind::file, where, "id {} has two added tokens, \"{}\" and \"{}\"", token.id,
           tokens_[by_id_.at(token.id)].content, token.content);
    if (!by_content_.emplace(token.content, i).second)
      fail(ErrorKind::file, where, "added token \"{}\" has two ids, {} and {}", token.content,
           tokens_[by_content_.at(token.content)].id, token.id);
    if (!token.normalized) raw_.add(token.content, i);
    if (!token.normalized && !token.decodes_normalized) continue;
    std::string text = normalize(normalizer, token.content).text;
    if (token.normalized) normalized_.add(text, i);
    if (text != token.content) texts_.emplace(token.id, std::move(text));
  }
}

std::vector<Segment> AddedTokens::split(std::string_view text,
                                        bool normalized,
                                        bool parse_special,
                                        const Guard* guard) const {
  const TokenFinder& finder = normalized ? normalized_ : raw_;
  std::vector<Segment> out;
  size_t covered = 0;
  size_t from = 0;
  while (const auto match = finder.next(text, from)) {
    from = match->end;
    const AddedToken& token = tokens_[match->value];
    if (token.special && !parse_special) continue;
    if (guard != nullptr && guards(*guard, token) &&
        guard->input.substr(match->begin, match->end - match->begin).find('\1') !=
            std::string_view::npos) {
      from = match->begin + 1;  // a protected token may begin inside
      continue;
    }
    size_t begin = match->begin;
    size_t end = match->end;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token.lstrip) begin = std::max(covered, begin_of_white_space_before(text, begin));
    if (token.rstrip) end = end_of_white_space_after(text, end);
    if (covered < begin) out.push_back({covered, begin, kNoToken});
    // a token inside white space that another token has consumed, and that consumes white space
    // itself, is dropped
    if (begin < end) out.push_back({begin, end, token.id});
    covered = end;
  }
  if (covered < text.size()) out.push_back({covered, text.size(), kNoToken});
  return out;
}

bool AddedTokens::guards(const Guard& guard, const AddedToken& token) {
  // a run of white space is text at any position
  return token.special || (token.content.find_first_not_of(" \t\r\n") != std::string::npos &&
                           guard.template_source.find(token.content) != std::string_view::npos);
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::string_view AddedTokens::text(const AddedToken& token) const {
  const auto found = texts_.find(token.id);
  return found == texts_.end() ? std::string_view(token.content) : found->second;
}

}  // namespace tessera::text
