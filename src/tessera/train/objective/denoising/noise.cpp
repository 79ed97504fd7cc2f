#include "tessera/train/objective/denoising/noise.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/train/data/draws.h"

namespace tessera::train {

int64_t longest_text(int64_t most, int64_t length, const std::function<bool(int64_t)>& fits) {
  int64_t found = 1, above = most + 1;
  while (above - found > 1) {
    const int64_t n = found + (above - found) / 2;
    (fits(n) ? found : above) = n;
  }
  // counts are rounded: near the limit a longer text may fit where a shorter one does not
  constexpr int64_t kBeside = 64;
  for (int64_t n = std::max<int64_t>(2, found); n <= std::min(most, found + kBeside); ++n)
    if (fits(n)) found = n;
  if (found < 2)
    fail(ErrorKind::spec, "train.length",
         "{} tokens are too few for the inputs and targets of a sample; expected more", length);
  return found;
}

std::vector<int64_t> Noise::transformed(const NoiseDocument&, int64_t, int64_t, const RandomKey&) const {
  fail(ErrorKind::internal, "noise", "it tells no documents");
}

PackedBatch pack_noised(std::vector<NoisedPiece> pieces,
                        std::optional<int64_t> start,
                        int64_t length) {
  PackedBatch batch;
  for (NoisedPiece& piece : pieces) {
    auto& [given, asked] = piece.text;
    given.resize(std::min(given.size(), static_cast<size_t>(length)));
    const int64_t read = start ? 1 : std::ssize(given);
    asked.resize(
        static_cast<size_t>(std::min(std::ssize(asked), std::max<int64_t>(1, length + 1 - read))));
    batch.pieces.push_back({piece.row, static_cast<int64_t>(batch.ids.size()),
                            read + std::ssize(asked) - 1, /*prefix=*/read});
    if (start)
      batch.ids.push_back(*start);
    else
      batch.ids.insert(batch.ids.end(), given.begin(), given.end());
    batch.ids.insert(batch.ids.end(), asked.begin(), asked.end() - 1);
    batch.targets.insert(batch.targets.end(), static_cast<size_t>(read - 1), -1);
    batch.targets.insert(batch.targets.end(), asked.begin(), asked.end());
    batch.n_targets += std::ssize(asked);
    if (start) batch.sources.push_back(std::move(given));
    if (piece.kind >= 0) batch.kinds.push_back(piece.kind);
  }
  return batch;
}

int64_t PrefixCut::raw_length() const {
  return longest_text(2 * room_.length, room_.length, [&](int64_t n) {
    const int64_t mode = mode_ ? 1 : 0, eos = eos_ ? 1 : 0;
    // wherever it is cut
    return room_.fits(mode + 1, n - 1 + eos) && room_.fits(mode + n - 1, 1 + eos);
  });
}

std::optional<DenoisingExample> PrefixCut::apply(const NoiseText& text,
                                                 const RandomKey& key) const {
  const int64_t n = std::ssize(text.ids);
  if (n < 2) return std::nullopt;
  const auto cut = text.ids.begin() + 1 + below(key.fold("cut"), 0, n - 1);
  DenoisingExample out{{text.ids.begin(), cut}, {cut, text.ids.end()}};
  if (mode_) out.given.insert(out.given.begin(), *mode_);
  if (eos_ && text.ends) out.asked.push_back(*eos_);
  return out;
}

std::optional<DenoisingExample> NextToken::apply(const NoiseText& text, const RandomKey&) const {
  std::vector<int64_t> rest(text.ids.begin() + (text.ids.empty() ? 0 : 1), text.ids.end());
  if (!text.ids.empty() && eos_ && text.ends) rest.push_back(*eos_);
  if (rest.empty()) return std::nullopt;
  return DenoisingExample{{text.ids.front()}, std::move(rest)};
}

}  // namespace tessera::train
