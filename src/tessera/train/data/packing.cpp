#include "tessera/train/data/packing.h"

#include <algorithm>
#include <bit>

#include "tessera/base/error.h"
#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

int64_t permuted(int64_t i, int64_t n, const RandomKey& key) {
  if (n <= 1) return 0;
  const int half = (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto value = static_cast<uint64_t>(i);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (key.fold(round).fold(right).value() & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(value);
}

SampleOrder::SampleOrder(int64_t tokens, int64_t length, uint64_t seed)
    : length_(std::min(length, tokens - 1)), key_(RandomKey(seed).fold("data")) {
  // one window fewer than fit, where there are several, leaves room for every phase
  windows_ = std::max<int64_t>(1, (tokens - length_) / length_);
  phases_ = std::min(length_, tokens - windows_ * length_);
}

Window SampleOrder::at(int64_t sample) const {
  const RandomKey epoch = key_.fold(static_cast<uint64_t>(sample / windows_));
  const auto phase =
      static_cast<int64_t>(epoch.fold("phase").value() % static_cast<uint64_t>(phases_));
  return {phase + permuted(sample % windows_, windows_, epoch.fold("order")) * length_, length_};
}

StreamOrder::StreamOrder(int64_t tokens, int64_t length, int64_t streams, uint64_t seed)
    : length_(std::min(length, std::max<int64_t>(1, (tokens - 1) / streams))),
      streams_(streams),
      key_(RandomKey(seed).fold("data")) {
  if (tokens - 1 < streams)
    fail(ErrorKind::input, "train",
         "the text has {} tokens; {} rows with carried states need at least {}: lower "
         "train.batch or train.accumulate",
         tokens, streams, streams + 1);
  windows_ = (tokens - 1) / (streams * length_);
  phases_ = std::min(length_, tokens - windows_ * streams * length_);
}

StreamOrder::Next StreamOrder::at(int64_t sample) const {
  const int64_t step = sample / streams_, stream = sample % streams_;
  const auto phase =
      static_cast<int64_t>(key_.fold(static_cast<uint64_t>(step / windows_)).fold("phase").value() %
                           static_cast<uint64_t>(phases_));
  const int64_t number = stream * windows_ + step % windows_;
  return {{phase + number * length_, length_}, step % windows_ == 0};
}

std::vector<Window> windows_in_order(int64_t tokens, int64_t length) {
  std::vector<Window> windows;
  for (int64_t begin = 0; begin + 1 < tokens; begin += length)
    windows.push_back({begin, std::min(length, tokens - 1 - begin)});
  return windows;
}

PackedBatch pack(const TokenSplit& split, std::span<const Window> windows) {
  PackedBatch batch;
  std::vector<int64_t> tokens;
  for (size_t row = 0; row < windows.size(); ++row) {
    const Window& window = windows[row];
    tokens.resize(static_cast<size_t>(window.length + 1));
    split.read(window.begin, tokens);
    const auto offset = static_cast<int64_t>(batch.ids.size());
    batch.ids.insert(batch.ids.end(), tokens.begin(), tokens.end() - 1);
    batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
    // one piece per document; the last token of a document predicts nothing
    int64_t end = 0;
    for (int64_t at = 0; at < window.length;) {
      end = split.document_end(window.begin + at) - window.begin;
      const int64_t length = std::min(end, window.length) - at;
      batch.pieces.push_back({static_cast<int64_t>(row), offset + at, length});
      if (end <= window.length) batch.targets[static_cast<size_t>(offset + end - 1)] = -1;
      at += length;
    }
    batch.goes_on.push_back(end > window.length);
  }
  batch.n_targets = static_cast<int64_t>(batch.targets.size()) -
                    std::count(batch.targets.begin(), batch.targets.end(), -1);
  return batch;
}

int64_t PairOrder::at(int64_t sample) const {
  const RandomKey epoch = key_.fold(static_cast<uint64_t>(sample / pairs_));
  return permuted(sample % pairs_, pairs_, epoch.fold("order"));
}

namespace {

std::vector<int64_t> first_tokens(const TokenSplit& split, int64_t document, int64_t most) {
  const auto [begin, tokens] = split.document(document);
  std::vector<int64_t> ids(static_cast<size_t>(std::min(tokens, most)));
  split.read(begin, ids);
  return ids;
}

}  // namespace

PackedBatch pack_pairs(const TokenSplit& split,
                       std::span<const int64_t> pairs,
                       int64_t start,
                       int64_t length) {
  std::vector<NoisedPiece> pieces;
  for (const int64_t pair : pairs)
    pieces.push_back(
        {std::ssize(pieces),
         {first_tokens(split, 2 * pair, length), first_tokens(split, 2 * pair + 1, length)}});
  return pack_noised(std::move(pieces), start, length);
}

PackedBatch pack_prefixed(const TokenSplit& split,
                          std::span<const int64_t> pairs,
                          std::optional<int32_t> separator,
                          int64_t length) {
  std::vector<NoisedPiece> pieces;
  for (const int64_t pair : pairs) {
    // one more than fits, so that a separator behind what fits is found
    std::vector<int64_t> source = first_tokens(split, 2 * pair, length + 1);
    if (separator && source.size() > 1 && source.back() == *separator) source.pop_back();
    pieces.push_back(
        {std::ssize(pieces), {std::move(source), first_tokens(split, 2 * pair + 1, length)}});
  }
  return pack_noised(std::move(pieces), std::nullopt, length);
}

void hide_seen(PackedBatch& batch, int64_t prefix) {
  if (prefix <= 1) return;
  for (const PackedDocument& piece : batch.pieces) {
    const auto first = batch.targets.begin() + piece.begin;
    std::fill_n(first, std::min(prefix - 1, piece.length), -1);
  }
  batch.n_targets = static_cast<int64_t>(batch.targets.size()) -
                    std::count(batch.targets.begin(), batch.targets.end(), -1);
}

}  // namespace tessera::train
