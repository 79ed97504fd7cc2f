#include "tessera/train/objective/denoising/denoising.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/train/data/draws.h"

namespace tessera::train {
namespace {

std::vector<int64_t> permuted_sentences(std::span<const int64_t> ids,
                                        std::span<const int64_t> ends,
                                        double share,
                                        const RandomKey& key) {
  const auto sentences = sentences_of(ids, ends);
  const int64_t n = std::ssize(sentences),
                moved = std::min(n, static_cast<int64_t>(
                                        std::ceil(share * static_cast<double>(sentences.size()))));
  std::vector<int64_t> order = shuffled(key.fold("all"), n);
  std::sort(order.begin(), order.end());
  const std::vector<int64_t> places = shuffled(key.fold("which"), n, moved),
                             now = shuffled(key.fold("where"), moved);
  for (size_t i = 0; i < places.size(); ++i)
    order[static_cast<size_t>(places[i])] = places[static_cast<size_t>(now[i])];
  return in_order(ids, sentences, order);
}

std::vector<int64_t> infilled_at_random(std::span<const int64_t> ids,
                                        double rate,
                                        double mean_span,
                                        int64_t mask,
                                        const RandomKey& key) {
  const int64_t n = std::ssize(ids);
  auto left = std::min(n, static_cast<int64_t>(std::ceil(rate * static_cast<double>(n))));
  const int64_t stay = n - left;
  std::vector<int64_t> lengths;
  const RandomKey spans = key.fold("lengths");
  while (left > 0) {
    lengths.push_back(std::min(left, poisson(mean_span, unit(spans, lengths.size()))));
    left -= lengths.back();
  }
  const int64_t k = std::ssize(lengths);
  return infilled(ids, lengths, choice(key.fold("slots"), stay + k, k), mask);
}

std::vector<int64_t> erased(const std::vector<int64_t>& ids, double rate, const RandomKey& key) {
  const auto n = static_cast<double>(ids.size());
  std::vector<int64_t> out;
  for (const int64_t place : choice(key, std::ssize(ids), std::ssize(ids) - std::llround(rate * n)))
    out.push_back(ids[static_cast<size_t>(place)]);
  return out;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> sentences_of(std::span<const int64_t> ids,
                                                      std::span<const int64_t> ends) {
  std::vector<std::pair<int64_t, int64_t>> out;
  const auto is_end = [&](int64_t id) { return std::binary_search(ends.begin(), ends.end(), id); };
  int64_t begin = 0;
  const int64_t n = std::ssize(ids);
  for (int64_t i = 0; i < n; ++i) {
    // of several ends in a row, "?!", the last one
    const bool last = i + 1 == n;
    if (!last && (!is_end(ids[static_cast<size_t>(i)]) || is_end(ids[static_cast<size_t>(i + 1)])))
      continue;
    out.emplace_back(begin, i + 1);
    begin = i + 1;
  }
  return out;
}

std::vector<int64_t> in_order(std::span<const int64_t> ids,
                              const std::vector<std::pair<int64_t, int64_t>>& sentences,
                              std::span<const int64_t> order) {
  std::vector<int64_t> out;
  for (const int64_t i : order) {
    const auto& [begin, end] = sentences.at(static_cast<size_t>(i));
    out.insert(out.end(), ids.begin() + begin, ids.begin() + end);
  }
  return out;
}

std::vector<int64_t> infilled(std::span<const int64_t> ids,
                              std::span<const int64_t> lengths,
                              std::span<const int64_t> slots,
                              int64_t mask) {
  require(lengths.size() == slots.size(), "denoising", "{} spans for {} slots", lengths.size(),
          slots.size());
  std::vector<int64_t> out;
  size_t at = 0, span = 0;
  while (at < ids.size() || span < slots.size()) {
    if (span < slots.size() && slots[span] == std::ssize(out)) {
      out.push_back(mask);
      at += static_cast<size_t>(lengths[span++]);
    } else {
      require(at < ids.size(), "denoising", "slot {} of {} tokens", slots[span], out.size());
      out.push_back(ids[at++]);
    }
  }
  require(at == ids.size(), "denoising", "spans of {} tokens in {}", at, ids.size());
  return out;
}

Denoising::Denoising(NoiseRoom room, Options options) : options_(std::move(options)) {
  raw_length_ = longest_text(room.length, room.length, [&](int64_t n) {
    const int64_t all = n + (options_.eos ? 1 : 0);
    return room.fits(all, all);
  });
}

std::optional<DenoisingExample> Denoising::apply(const NoiseText& text,
                                                 const RandomKey& key) const {
  if (text.ids.empty()) return std::nullopt;
  DenoisingExample out{{text.ids.begin(), text.ids.end()}, {text.ids.begin(), text.ids.end()}};
  if (options_.permute > 0)
    out.given = permuted_sentences(out.given, options_.sentence_ends, options_.permute,
                                   key.fold("permute"));
  if (options_.infill > 0)
    out.given = infilled_at_random(out.given, options_.infill, options_.mean_span, options_.mask,
                                   key.fold("infill"));
  if (options_.erase > 0) out.given = erased(out.given, options_.erase, key.fold("erase"));
  if (const RandomKey turn = key.fold("rotate");
      unit(turn, 0) < options_.rotate && !out.given.empty())
    std::rotate(out.given.begin(), out.given.begin() + below(turn, 1, std::ssize(out.given)),
                out.given.end());
  if (options_.eos)
    for (auto* side : {&out.given, &out.asked}) side->push_back(*options_.eos);
  if (out.given.empty()) return std::nullopt;
  return out;
}

}  // namespace tessera::train
