#include "tessera/text/tokenizer/token_spans.h"

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

std::vector<int32_t> bare(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, {.add_special = false});
}

void leave_out_spaces(TokenSpan& span, std::string_view text) {
  while (span.begin < span.end) {
    const size_t length = character_length(text, span.begin);
    if (length == 0 || !is_white_space(code_point_at(text, span.begin, length)) ||
        span.begin + length >= span.end)
      return;
    span.begin += length;
  }
}

/// From the decoded tokens; false if they do not reproduce the text.
bool by_decoding(const Tokenizer& tokenizer, std::string_view text, std::vector<TokenSpan>& spans) {
  StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  std::string said;
  for (TokenSpan& span : spans) {
    span.begin = said.size();
    said += decoder.push(span.id);
  }
  said += decoder.finish();
  if (said != text) return false;
  for (size_t i = 0; i < spans.size(); ++i) {
    spans[i].end = i + 1 < spans.size() ? spans[i + 1].begin : text.size();
    // a character may have several tokens, which get its span with the last of them
    if (spans[i].end == spans[i].begin)
      for (size_t next = i + 1; next <= spans.size() && spans[i].end == spans[i].begin; ++next)
        spans[i].end = next < spans.size() ? spans[next].begin : text.size();
    leave_out_spaces(spans[i], text);
  }
  return true;
}

/// Words and single marks, as the tokenizers of BERT cut a text.
std::vector<TokenSpan> words_in(std::string_view text) {
  std::vector<TokenSpan> words;
  bool open = false;
  for_each_character(text, [&](char32_t c, size_t begin, size_t end) {
    if (is_white_space(c)) {
      open = false;
      return;
    }
    const bool alone = is_punctuation(c) || is_ideograph(c);
    if (open && !alone)
      words.back().end = end;
    else
      words.push_back({0, begin, end});
    open = !alone;
  });
  return words;
}

}  // namespace

std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenSpan> spans;
  for (const int32_t id : bare(tokenizer, text)) spans.push_back({id});
  if (by_decoding(tokenizer, text, spans)) return spans;
  std::vector<TokenSpan> by_word;
  for (const TokenSpan& word : words_in(text))
    for (const int32_t id : bare(tokenizer, text.substr(word.begin, word.end - word.begin)))
      by_word.push_back({id, word.begin, word.end});
  const auto same = [](const TokenSpan& a, const TokenSpan& b) { return a.id == b.id; };
  if (by_word.size() != spans.size() ||
      !std::equal(by_word.begin(), by_word.end(), spans.begin(), same))
    fail(ErrorKind::input, "tokenizer",
         "it changes the text, and tokenizes words differently on their own, so that the positions "
         "of tokens are unknown; expected a tokenizer that maps tokens to the text");
  return by_word;
}

WordTokens::WordTokens(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)), with_space_(false) {
  const std::vector<int32_t> whole = bare(tokenizer_, "the cat"), cat = bare(tokenizer_, "cat");
  std::vector<int32_t> apart = bare(tokenizer_, "the");
  apart.insert(apart.end(), cat.begin(), cat.end());
  with_space_ = apart != whole;
}

std::vector<int32_t> WordTokens::of(const std::string& word, bool first) const {
  return bare(tokenizer_, first || !with_space_ ? word : " " + word);
}

}  // namespace tessera::text
