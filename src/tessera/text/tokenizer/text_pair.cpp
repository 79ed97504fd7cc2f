#include "tessera/text/tokenizer/text_pair.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

/// How many tokens stand before a text.
size_t tokens_before(const Tokenizer& tokenizer) {
  // any token: where it is found again the text begins
  const std::vector<int32_t> around = tokenizer.surround({}),
                             with = tokenizer.surround(std::vector<int32_t>{-1});
  return static_cast<size_t>(std::find(with.begin(), with.end(), -1) - with.begin());
}

/// The tokens of two texts with what stands around and between them.
Tokenizer::Pair joined(const Tokenizer& tokenizer,
                       const std::vector<int32_t>& first,
                       const std::vector<int32_t>& second) {
  Tokenizer::Pair pair = tokenizer.surround(first, second);
  if (pair.second > tokens_before(tokenizer) + first.size()) return pair;
  // nothing tells the texts apart
  const std::vector<int32_t> line_end = tokenizer.encode("\n", {.add_special = false});
  pair.ids.insert(pair.ids.begin() + static_cast<std::ptrdiff_t>(pair.second), line_end.begin(),
                  line_end.end());
  pair.second += line_end.size();
  return pair;
}

}  // namespace

int64_t tokens_around(const Tokenizer& tokenizer, bool pair) {
  return pair ? std::ssize(joined(tokenizer, {}, {}).ids) : std::ssize(tokenizer.surround({}));
}

void truncate(const Tokenizer& tokenizer, std::vector<int32_t>& ids, size_t n) {
  if (n >= ids.size()) return;
  if (tokenizer.truncates_left())
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(n));
  else
    ids.resize(n);
}

ClassifierInput classifier_input_of_tokens(const Tokenizer& tokenizer,
                                           std::vector<int32_t> first,
                                           std::optional<std::vector<int32_t>> second,
                                           int64_t limit) {
  if (first.empty() || (second && second->empty()))
    fail(ErrorKind::input, "text", "a text has no token; expected some");
  ClassifierInput out;
  const int64_t around = tokens_around(tokenizer, second.has_value());
  const int64_t least = second ? 2 : 1;
  if (limit > 0 && limit < around + least)
    fail(ErrorKind::input, "text", "{} tokens leave no room for a text; expected at least {}",
         limit, around + least);
  size_t n_first = first.size(), n_second = second ? second->size() : 0;
  while (limit > 0 && static_cast<int64_t>(n_first + n_second) + around > limit) {
    --(n_second > n_first ? n_second : n_first);
    out.cut = true;
  }
  if (tokenizer.truncates_left()) out.first_dropped = first.size() - n_first;
  truncate(tokenizer, first, n_first);
  if (second) truncate(tokenizer, *second, n_second);
  out.first_begin = tokens_before(tokenizer);
  out.first_length = first.size();
  if (second) {
    Tokenizer::Pair pair = joined(tokenizer, first, *second);
    out.ids.assign(pair.ids.begin(), pair.ids.end());
    out.second = pair.second;
    out.second_length = second->size();
  } else {
    const std::vector<int32_t> ids = tokenizer.surround(first);
    out.ids.assign(ids.begin(), ids.end());
    out.second = ids.size();
  }
  return out;
}

ClassifierInput classifier_input(const Tokenizer& tokenizer,
                                 std::string_view first,
                                 std::optional<std::string_view> second,
                                 int64_t limit) {
  const auto ids = [&](std::string_view text) {
    return tokenizer.encode(text, {.add_special = false});
  };
  return classifier_input_of_tokens(tokenizer, ids(first),
                                    second ? std::optional(ids(*second)) : std::nullopt, limit);
}

std::vector<int64_t> types_of(const ClassifierInput& text) {
  std::vector<int64_t> types(text.ids.size(), 0);
  std::fill(types.begin() + static_cast<std::ptrdiff_t>(text.second), types.end(), 1);
  return types;
}

}  // namespace tessera::text
