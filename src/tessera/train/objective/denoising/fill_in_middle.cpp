#include "tessera/train/objective/denoising/fill_in_middle.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/train/data/draws.h"

namespace tessera::train {
namespace {

void append(std::vector<int64_t>& to, std::span<const int64_t> ids) {
  to.insert(to.end(), ids.begin(), ids.end());
}

std::vector<int64_t> encoded(const text::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text, {.add_special = false});
  return {ids.begin(), ids.end()};
}

/// Byte offsets of the characters, and of the end.
std::vector<size_t> characters_of(std::string_view text) {
  std::vector<size_t> out;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) out.push_back(i);
  out.push_back(text.size());
  return out;
}

}  // namespace

DenoisingExample fill_in_middle(const MiddleTokens& tokens,
                                std::span<const int64_t> prefix,
                                std::span<const int64_t> middle,
                                std::span<const int64_t> suffix,
                                bool spm) {
  DenoisingExample out;
  out.given.push_back(tokens.prefix);
  if (!spm) append(out.given, prefix);
  out.given.push_back(tokens.suffix);
  append(out.given, suffix);
  out.given.push_back(tokens.middle);
  if (spm) append(out.given, prefix);
  append(out.asked, middle);
  out.asked.push_back(tokens.eos);
  return out;
}

FillInMiddle::FillInMiddle(NoiseRoom room, Options options)
    : room_(room), options_(std::move(options)) {
  raw_length_ = longest_text(room.length, room.length,
                             // wherever it is cut
                             [&](int64_t n) { return room.fits(n + 3, 1); });
  if (!options_.characters) return;
  std::vector<int32_t> ids;
  for (const char* part : {"a wo", "rd", " or two"})
    for (const int32_t id : options_.characters->encode(part, {.add_special = false}))
      ids.push_back(id);
  if (const std::string text = options_.characters->decode(ids); text != "a word or two")
    fail(ErrorKind::spec, "objective.cut",
         "\"characters\", but the parts \"a wo\", \"rd\" and \" or two\" of a text come back from "
         "this tokenizer as \"{}\"; expected \"tokens\"",
         text);
}

FillInMiddle::Parts FillInMiddle::cut(std::span<const int64_t> ids, const RandomKey& key) const {
  const auto two = [&](int64_t places) {
    return std::minmax({below(key, 0, places), below(key, 1, places)});
  };
  std::string text;
  if (options_.characters)
    text = options_.characters->decode(std::vector<int32_t>(ids.begin(), ids.end()),
                                       /*skip_special=*/false);
  // a window that begins inside a character cannot be decoded
  if (!options_.characters || text.find("\xEF\xBF\xBD") != std::string::npos) {
    const auto [a, b] = two(std::ssize(ids) + 1);
    const auto part = [&ids](int64_t from, int64_t to) {
      return std::vector<int64_t>(ids.begin() + from, ids.begin() + to);
    };
    return {part(0, a), part(a, b), part(b, std::ssize(ids))};
  }
  const std::vector<size_t> begins = characters_of(text);
  const auto [a, b] = two(std::ssize(begins));
  const auto part = [&](size_t from, size_t to) {
    return encoded(*options_.characters, std::string_view(text).substr(from, to - from));
  };
  const size_t first = begins[static_cast<size_t>(a)], second = begins[static_cast<size_t>(b)];
  return {part(0, first), part(first, second), part(second, text.size())};
}

std::optional<DenoisingExample> FillInMiddle::apply(const NoiseText& text,
                                                    const RandomKey& key) const {
  const NextToken as_it_is(room_, options_.tokens.eos);
  if (text.ids.empty()) return std::nullopt;
  if (unit(key.fold("whether"), 0) >= options_.rate) return as_it_is.apply(text, key);
  const Parts parts = cut(text.ids, key.fold("cut"));
  DenoisingExample out = fill_in_middle(options_.tokens, parts.prefix, parts.middle, parts.suffix,
                                        unit(key.fold("order"), 0) < options_.spm_rate);
  // the parts may have more tokens than the whole
  if (std::ssize(out.given) > room_.length) return as_it_is.apply(text, key);
  if (options_.middle_alone) return out;
  DenoisingExample all{{out.given.front()}, {out.given.begin() + 1, out.given.end()}};
  append(all.asked, out.asked);
  return all;
}

std::vector<int64_t> FillInMiddle::transformed(const NoiseDocument& document,
                                               int64_t from,
                                               int64_t to,
                                               const RandomKey& key) const {
  require(from >= 0 && to <= document.tokens, "fim", "tokens {} to {} of {}", from, to,
          document.tokens);
  const MiddleTokens& names = options_.tokens;
  const int64_t kept = document.tokens - 4;
  std::vector<int64_t> out;
  if (kept < 1 || unit(key.fold("whether"), 0) >= options_.rate) {
    for (int64_t i = from; i < to; ++i) out.push_back(document.at(i));
    return out;
  }
  const RandomKey cuts = key.fold("cut");
  const auto [a, b] = std::minmax({below(cuts, 0, kept + 1), below(cuts, 1, kept + 1)});
  // the result as runs: a marker, or tokens of the document
  struct TokenRun {
    int64_t name = -1, begin = 0, length = 1;
  };
  const TokenRun prefix{-1, 0, a}, middle{-1, a, b - a}, suffix{-1, b, kept - b};
  const bool spm = unit(key.fold("order"), 0) < options_.spm_rate;
  const std::vector<TokenRun> psm_runs = {{names.prefix}, prefix, {names.suffix}, suffix,
                                          {names.middle}, middle, {names.eos}},
                              spm_runs = {{names.prefix}, {names.suffix}, suffix,
                                          {names.middle}, prefix,         middle,
                                          {names.eos}};
  int64_t at = 0;
  for (const TokenRun& run : spm ? spm_runs : psm_runs) {
    for (int64_t i = std::max(from, at); i < std::min(to, at + run.length); ++i)
      out.push_back(run.name >= 0 ? run.name : document.at(run.begin + i - at));
    at += run.length;
  }
  return out;
}

}  // namespace tessera::train
