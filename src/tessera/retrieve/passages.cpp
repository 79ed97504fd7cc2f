#include "tessera/retrieve/passages.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::retrieve {
namespace {

/// A line, or a part of a long one.
struct Piece {
  size_t begin = 0, end = 0;  // line end included
  int64_t line = 1, tokens = 0;
  bool blank = false, heading = false;
};

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

/// Positions where a part of a line may end, best first: after sentences, after words, between
/// characters.
enum class Cut { sentence, word, character };

bool may_end(std::string_view text, size_t at, Cut cut) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if ((byte & 0xC0) == 0x80) return false;  // inside a character
  const char before = text[at - 1];
  switch (cut) {
    case Cut::sentence:
      return before == ' ' && at >= 2 &&
             std::string_view(".!?;").find(text[at - 2]) != std::string_view::npos;
    case Cut::word:
      return before == ' ' || before == '\t';
    case Cut::character:
      return true;
  }
  return true;
}

class Cutter {
 public:
  Cutter(std::string_view text, const text::Tokenizer& tokenizer, int64_t limit)
      : text_(text), tokenizer_(tokenizer), limit_(limit) {}

  std::vector<Piece> pieces() {
    int64_t line = 1;
    for (size_t begin = 0; begin < text_.size(); ++line) {
      const size_t end = std::min(text_.find('\n', begin), text_.size() - 1) + 1;
      add(begin, end, line);
      begin = end;
    }
    return std::move(pieces_);
  }

 private:
  int64_t count(size_t begin, size_t end) const {
    return std::ssize(tokenizer_.encode(text_.substr(begin, end - begin), {.add_special = false}));
  }

  void add(size_t begin, size_t end, int64_t line) {
    const std::string_view part = text_.substr(begin, end - begin);
    Piece piece{begin, end, line, 0, is_blank(part), part.starts_with('#')};
    if (!piece.blank) piece.tokens = count(begin, end);
    if (piece.tokens <= limit_) {
      pieces_.push_back(piece);
      return;
    }
    const size_t middle = halfway(begin, end);
    // a single character may have more tokens than a passage
    if (middle == begin || middle == end) {
      pieces_.push_back(piece);
      return;
    }
    add(begin, middle, line);
    add(middle, end, line);
  }

  /// The best position to split near the middle.
  size_t halfway(size_t begin, size_t end) const {
    const size_t middle = begin + (end - begin) / 2, reach = (end - begin) / 4;
    for (const Cut cut : {Cut::sentence, Cut::word, Cut::character})
      for (size_t off = 0; off <= reach; ++off)
        for (const size_t at : {middle + off, middle - off})
          if (at > begin && at < end && may_end(text_, at, cut)) return at;
    return begin;
  }

  std::string_view text_;
  const text::Tokenizer& tokenizer_;
  int64_t limit_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Span> passages_of(std::string_view text,
                              const text::Tokenizer& tokenizer,
                              const PassageOptions& options) {
  if (options.tokens < 1 || options.overlap < 0 || options.overlap >= options.tokens)
    fail(ErrorKind::usage, "passages",
         "{} tokens with {} repeated; expected at least 1, and fewer repeated", options.tokens,
         options.overlap);
  const std::vector<Piece> pieces = Cutter(text, tokenizer, options.tokens).pieces();
  std::vector<Span> out;
  size_t first = 0;  // first piece of the passage
  while (first < pieces.size()) {
    while (first < pieces.size() && pieces[first].blank) ++first;
    if (first == pieces.size()) break;
    int64_t tokens = 0;
    size_t end = first;
    bool rests = false;
    for (; end < pieces.size() &&
           tokens + pieces[end].tokens <= std::max(options.tokens, pieces[first].tokens);
         ++end) {
      rests =
          end > first && tokens >= options.tokens / 2 && (pieces[end].blank || pieces[end].heading);
      if (rests) break;
      tokens += pieces[end].tokens;
    }
    size_t last = end;
    while (pieces[last - 1].blank) --last;
    out.push_back(
        {pieces[first].begin, pieces[last - 1].end, pieces[first].line, pieces[last - 1].line});
    if (end == pieces.size()) break;
    size_t next = end;
    if (!rests) {
      int64_t repeated = 0;
      while (next - 1 > first && !pieces[next - 1].blank &&
             repeated + pieces[next - 1].tokens <= options.overlap)
        repeated += pieces[--next].tokens;
      // the overlap must leave room for new text
      if (repeated + pieces[end].tokens > options.tokens) next = end;
    }
    first = next;
  }
  return out;
}

}  // namespace tessera::retrieve
