#include "tessera/train/data/mixed_source.h"

#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/sha256.h"

namespace tessera::train {

SharedSample shared_sample(int64_t number, const std::vector<double>& shares) {
  double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (size_t i = 0; i + 1 < shares.size(); ++i) {
    const double share = shares[i] / sum;
    const auto before = static_cast<int64_t>(std::floor(static_cast<double>(number) * share)),
               behind = static_cast<int64_t>(std::floor(static_cast<double>(number + 1) * share));
    if (behind > before) return {i, before};
    number -= before;
    sum -= shares[i];
  }
  return {shares.size() - 1, number};
}

double share_of(double weight, int64_t tokens, double temperature) {
  return weight * std::pow(static_cast<double>(tokens), 1 / temperature);
}

void append(PackedBatch& to, const PackedBatch& more, int64_t rows) {
  // structured binding of all members: a new one does not compile until it is appended here
  auto& [ids, targets, pieces, goes_on, sources, kinds, items, names, orders, types, labels,
         features, n_targets, first_sample] = to;
  const bool both = !pieces.empty() && !more.pieces.empty();
  const auto tokens = std::ssize(ids);
  for (PackedDocument piece : more.pieces) {
    piece.row += rows;
    piece.begin += tokens;
    pieces.push_back(piece);
  }
  const auto add = [both](auto& all, const auto& some) {
    require(!both || all.empty() == some.empty(), "data", "rows of batches that say unlike things");
    all.insert(all.end(), some.begin(), some.end());
  };
  add(ids, more.ids);
  add(targets, more.targets);
  add(goes_on, more.goes_on);
  add(sources, more.sources);
  add(kinds, more.kinds);
  add(items, more.items);
  add(names, more.names);
  add(orders, more.orders);
  add(types, more.types);
  add(labels, more.labels);
  add(features, more.features);
  n_targets += more.n_targets;
}

MixedSource::MixedSource(std::vector<Member> members) : members_(std::move(members)) {
  require(!members_.empty(), "data", "a mixture of nothing");
  std::string keys;
  for (const Member& member : members_) {
    shares_.push_back(member.share);
    keys += member.source->key() + "\n";
  }
  key_ = sha256(keys);
}

PackedBatch MixedSource::train(int64_t first, int64_t count, std::vector<int64_t>& begun) const {
  PackedBatch out;
  out.first_sample = first;
  for (int64_t row = 0; row < count; ++row) {
    const SharedSample from = shared_sample(first + row, shares_);
    append(out, members_[from.source].source->train(from.number, 1, begun), row);
  }
  return out;
}

int64_t MixedSource::valid_samples() const {
  int64_t sum = 0;
  for (const Member& member : members_) sum += member.source->valid_samples();
  return sum;
}

PackedBatch MixedSource::valid(const std::vector<int64_t>& samples) const {
  PackedBatch out;
  for (size_t row = 0; row < samples.size(); ++row) {
    int64_t number = samples[row];
    size_t i = 0;
    for (; number >= members_.at(i).source->valid_samples(); ++i)
      number -= members_[i].source->valid_samples();
    append(out, members_[i].source->valid({number}), static_cast<int64_t>(row));
  }
  return out;
}

double MixedSource::tokens_per_byte() const {
  double tokens = 0, bytes = 0;
  for (const Member& member : members_) {
    tokens += member.source->tokens_per_byte() * member.valid_bytes;
    bytes += member.valid_bytes;
  }
  return bytes > 0 ? tokens / bytes : 0;
}

}  // namespace tessera::train
