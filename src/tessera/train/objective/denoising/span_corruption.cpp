#include "tessera/train/objective/denoising/span_corruption.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/train/data/draws.h"

namespace tessera::train {

SpanCounts SpanCounts::of(int64_t tokens, double rate, double mean_span) {
  const auto rounded = [](float x) { return static_cast<int64_t>(std::nearbyint(x)); };
  SpanCounts out;
  out.noise = std::clamp<int64_t>(rounded(static_cast<float>(tokens) * static_cast<float>(rate)), 1,
                                  tokens - 1);
  out.spans =
      std::clamp<int64_t>(rounded(static_cast<float>(out.noise) / static_cast<float>(mean_span)), 1,
                          // every span has a token, and text before it
                          std::min(out.noise, tokens - out.noise));
  return out;
}

std::vector<int64_t> random_parts(int64_t n, int64_t k, const RandomKey& key) {
  std::vector<int64_t> parts;
  int64_t begin = 0;
  for (const int64_t gap : choice(key, n - 1, k - 1)) {
    parts.push_back(gap + 1 - begin);
    begin = gap + 1;
  }
  parts.push_back(n - begin);
  return parts;
}

int64_t SpanCorruption::longest(NoiseRoom room, double rate, double mean_span, bool has_mode) {
  const int64_t around = has_mode ? 2 : 1;  // the mode, and the end
  // one of the two sides keeps half of a text or more
  return longest_text(2 * room.length + 4, room.length, [&](int64_t n) {
    const SpanCounts counts = SpanCounts::of(n, rate, mean_span);
    return room.fits(n - counts.noise + counts.spans + around, counts.noise + counts.spans + 1);
  });
}

SpanCorruption::SpanCorruption(NoiseRoom room, Options options) : options_(std::move(options)) {
  raw_length_ = longest(room, options_.rate, options_.mean_span, options_.mode.has_value());
  const int64_t most = SpanCounts::of(raw_length_, options_.rate, options_.mean_span).spans;
  if (most > std::ssize(options_.sentinels))
    fail(ErrorKind::spec, "objective.sentinels",
         "found {}; texts of {} tokens have up to {} spans, which need one each: name more, give "
         "spec.vocab more ids beyond the tokenizer's, or make mean_span longer",
         options_.sentinels.size(), raw_length_, most);
}

std::optional<DenoisingExample> SpanCorruption::apply(const NoiseText& text,
                                                      const RandomKey& key) const {
  const int64_t n = std::ssize(text.ids);
  if (n < 2) return std::nullopt;
  const SpanCounts counts = SpanCounts::of(n, options_.rate, options_.mean_span);
  return with_parts(text.ids, random_parts(n - counts.noise, counts.spans, key.fold("text")),
                    random_parts(counts.noise, counts.spans, key.fold("noise")));
}

DenoisingExample SpanCorruption::with_parts(std::span<const int64_t> ids,
                                            std::span<const int64_t> text,
                                            std::span<const int64_t> noise) const {
  require(text.size() == noise.size() && text.size() <= options_.sentinels.size(),
          "span_corruption", "{} parts of text, {} of noise, {} sentinels", text.size(),
          noise.size(), options_.sentinels.size());
  DenoisingExample out;
  if (options_.mode) out.given.push_back(*options_.mode);
  auto at = ids.begin();
  const auto move = [&](std::vector<int64_t>& to, int64_t tokens) {
    to.insert(to.end(), at, at + tokens);
    at += tokens;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    move(out.given, text[i]);
    for (auto* side : {&out.given, &out.asked}) side->push_back(options_.sentinels[i]);
    move(out.asked, noise[i]);
  }
  for (auto* side : {&out.given, &out.asked}) side->push_back(options_.eos);
  return out;
}

}  // namespace tessera::train
