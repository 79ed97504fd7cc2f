// Data mixture: samples of several datasets in fixed shares. Torch-free.
//
// The first dataset has a sample wherever floor((number + 1) share) exceeds floor(number share);
// the others divide the rest in the same way. So every batch has its shares up to one sample, every
// dataset yields its samples 0, 1, 2, ... in turn, and the dataset of a sample depends on its
// number only.
#pragma once

#include "tessera/train/data/dataset.h"

namespace tessera::train {

/// The dataset of a sample, and its number there. Shares are positive and are normalized by their
/// sum.
struct SharedSample {
  size_t source = 0;
  int64_t number = 0;
};
SharedSample shared_sample(int64_t number, const std::vector<double>& shares);

/// weight * tokens^(1 / temperature): at 1 proportional to size, above it small texts are sampled
/// more often (Raffel et al. 2020, sec. 3.5.2; multilingual BERT).
double share_of(double weight, int64_t tokens, double temperature);

/// Appends the rows of `more` to `to`, which has `rows` rows, with all their data; the number of
/// the first row stays. Both must have the same optional members.
void append(PackedBatch& to, const PackedBatch& more, int64_t rows);

class MixedSource final : public Dataset {
 public:
  struct Member {
    std::unique_ptr<Dataset> source;
    double share = 1;
    double valid_bytes = 0;  // of its validation text
  };
  explicit MixedSource(std::vector<Member> members);

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override;
  /// Of all datasets, one after the other.
  int64_t valid_samples() const override;
  PackedBatch valid(const std::vector<int64_t>& samples) const override;
  double tokens_per_byte() const override;
  const std::string& key() const override { return key_; }

 private:
  std::vector<Member> members_;
  std::vector<double> shares_;
  std::string key_;
};

}  // namespace tessera::train
