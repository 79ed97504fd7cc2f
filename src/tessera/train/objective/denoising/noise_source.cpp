#include "tessera/train/objective/denoising/noise_source.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/train/data/draws.h"

namespace tessera::train {
namespace {

/// Every text of that many tokens gives an example.
constexpr int64_t kLeast = 2;

/// All tokens in order: targets are inside the window, so none is needed after it.
std::vector<Window> whole_windows(int64_t tokens, int64_t length) {
  std::vector<Window> out;
  for (int64_t begin = 0; begin < tokens; begin += length)
    out.push_back({begin, std::min(length, tokens - begin)});
  return out;
}

}  // namespace

NoiseSource::NoiseSource(TokenData data,
                         std::vector<double> weights,
                         std::vector<std::unique_ptr<Noise>> noises,
                         Options options)
    : data_(std::move(data)),
      weights_(std::move(weights)),
      noises_(std::move(noises)),
      options_(options),
      key_(RandomKey(static_cast<uint64_t>(options.seed)).fold("objective")) {
  require(!noises_.empty() && weights_.size() == noises_.size(), "noise",
          "{} weights for {} noises", weights_.size(), noises_.size());
  const auto check = [&](const TokenSplit& split, const char* name) {
    if (has_text(split, {0, split.tokens()})) return;
    fail(ErrorKind::input, "data",
         "the {} split: no document of {} has {} tokens of text; expected one", name,
         split.documents(), kLeast);
  };
  check(data_.train, "train");
  int64_t shortest = noises_.front()->raw_length();
  for (const auto& noise : noises_) {
    orders_.emplace_back(data_.train.tokens() + 1, noise->raw_length(),
                         static_cast<uint64_t>(options.seed));
    shortest = std::min(shortest, noise->raw_length());
  }
  if (data_.valid.tokens() == 0) return;
  check(data_.valid, "valid");
  // every noise of the mixture fits
  for (const Window& window : whole_windows(data_.valid.tokens(), shortest))
    if (has_text(data_.valid, window)) valid_.push_back(window);
}

size_t NoiseSource::draw(const RandomKey& key) const {
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  double left = unit(key.fold("mixture"), 0) * sum;
  size_t last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    if (left < weights_[i]) break;
    left -= weights_[i];
  }
  return last;
}

PackedBatch NoiseSource::train(int64_t first, int64_t count, std::vector<int64_t>&) const {
  std::vector<NoisedPiece> pieces;
  for (int64_t sample = first; sample < first + count; ++sample) {
    const RandomKey key = key_.fold(static_cast<uint64_t>(sample));
    const size_t noise = draw(key);
    // a window without text is replaced by the next one
    const SampleOrder& order = orders_[noise];
    const int64_t length = options_.ramp.part(sample, noises_[noise]->raw_length());
    const auto at = [&](int64_t number) {
      Window window = order.at(number);
      window.length = std::min(window.length, length);
      return window;
    };
    int64_t number = sample;
    while (number - sample < order.per_epoch() && !has_text(data_.train, at(number))) ++number;
    // in an epoch a document has one transformation in all windows
    const RandomKey epoch =
        key_.fold("documents").fold(static_cast<uint64_t>(number / order.per_epoch()));
    add(pieces, data_.train, at(number), noise, sample - first, {key, epoch});
  }
  PackedBatch out = pack_noised(std::move(pieces), options_.start, options_.length);
  out.first_sample = first;
  return out;
}

PackedBatch NoiseSource::valid(const std::vector<int64_t>& samples) const {
  std::vector<NoisedPiece> pieces;
  for (size_t row = 0; row < samples.size(); ++row) {
    const RandomKey key = RandomKey(hash_name("valid")).fold(static_cast<uint64_t>(samples[row]));
    add(pieces, data_.valid, valid_.at(static_cast<size_t>(samples[row])), draw(key),
        static_cast<int64_t>(row), {key, RandomKey(hash_name("valid")).fold("documents")});
  }
  return pack_noised(std::move(pieces), options_.start, options_.length);
}

std::vector<NoiseSource::DocumentPart> NoiseSource::parts(const TokenSplit& split,
                                                          const Window& window) const {
  std::vector<DocumentPart> out;
  for (int64_t at = window.begin, end = window.begin + window.length; at < end;) {
    const int64_t document_end = split.document_end(at);
    DocumentPart part;
    part.ends = document_end <= end;
    part.ids.resize(static_cast<size_t>(std::min(document_end, end) - at));
    split.read(at, part.ids);
    at += std::ssize(part.ids);
    if (part.ends && data_.separator && part.ids.back() == *data_.separator) part.ids.pop_back();
    out.push_back(std::move(part));
  }
  return out;
}

bool NoiseSource::has_text(const TokenSplit& split, const Window& window) const {
  for (int64_t at = window.begin, end = window.begin + window.length; at < end;) {
    const int64_t document_end = split.document_end(at), here = std::min(document_end, end);
    const int64_t separator = document_end <= end && data_.separator ? 1 : 0;
    if (here - at >= kLeast + separator) return true;
    at = here;
  }
  return false;
}

void NoiseSource::add(std::vector<NoisedPiece>& to,
                      const TokenSplit& split,
                      const Window& window,
                      size_t number,
                      int64_t row,
                      const Keys& keys) const {
  const Noise& noise = *noises_[number];
  const int64_t kind = noises_.size() > 1 ? static_cast<int64_t>(number) : -1;
  if (!noise.transforms_documents()) {
    const std::vector<DocumentPart> all = parts(split, window);
    for (size_t i = 0; i < all.size(); ++i)
      if (auto text = noise.apply({all[i].ids, all[i].ends}, keys.sample.fold(i)))
        to.push_back({row, std::move(*text), kind});
    return;
  }
  const int64_t end = window.begin + window.length;
  for (int64_t at = window.begin; at < end;) {
    const int64_t index = split.document_of(at);
    const auto [begin, tokens] = split.document(index);
    const int64_t until = std::min(end, begin + tokens);
    if (until - at >= 2) {
      const NoiseDocument document{tokens, [&split, first = begin](int64_t i) {
                                     int64_t id = 0;
                                     split.read(first + i, std::span(&id, 1));
                                     return id;
                                   }};
      const std::vector<int64_t> ids = noise.transformed(
          document, at - begin, until - begin, keys.documents.fold(static_cast<uint64_t>(index)));
      to.push_back({row, {{ids.front()}, {ids.begin() + 1, ids.end()}}, kind});
    }
    at = until;
  }
}

}  // namespace tessera::train
