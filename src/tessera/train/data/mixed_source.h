// Samples of several sources in fixed shares. Torch-free.
//
// The first source has a sample wherever the whole part of (number + 1) share passes that of number
// share; the rest is divided in the same way among the others. So every batch has its shares but
// for a sample, every source gives its own samples 0, 1, 2, ... in turn, and where a sample comes
// from follows from its number alone.
#pragma once

#include "tessera/train/data/dataset.h"

namespace tessera::train {

/// Of which source a sample is, and its number there. Shares are positive; they are divided by
/// their sum.
struct SharedSample {
  size_t source = 0;
  int64_t number = 0;
};
SharedSample shared_sample(int64_t number, const std::vector<double>& shares);

/// weight * tokens^(1 / temperature): at 1 texts as large as they are, above it the small ones more
/// often (Raffel et al. 2020, sec. 3.5.2; multilingual BERT).
double share_of(double weight, int64_t tokens, double temperature);

/// Adds the rows of `more` behind those of `to`, which has `rows` of them, with all that `more`
/// holds for them; the number of the first row stays. Both say the same kinds of things of their
/// rows.
void append(PackedBatch& to, const PackedBatch& more, int64_t rows);

class MixedSource final : public Dataset {
 public:
  struct Member {
    std::unique_ptr<Dataset> source;
    double share = 1;
    double valid_bytes = 0;  // of its text to evaluate on
  };
  explicit MixedSource(std::vector<Member> members);

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override;
  /// Of all of them, one behind the other.
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
