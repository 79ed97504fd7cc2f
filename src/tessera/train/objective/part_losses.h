// The losses that parts add in one forward pass (model::ForwardOptions::add_loss), each a mean over
// the tokens that its stack reads in the whole update.
#pragma once

#include <algorithm>

#include "tessera/train/objective/objective.h"

namespace tessera::train {

class PartLosses {
 public:
  /// `whole`, of the update, must outlive it.
  explicit PartLosses(const Denominators& whole) : whole_(whole) {}
  /// Takes losses until this ends.
  nn::LossSink sink() {
    return [this](const std::string& name, const Tensor& sum) {
      const auto [known, added] = sums_.emplace(name, sum.detach());
      if (!added) known->second = known->second + sum.detach();
      const Tensor share = sum / whole_.divisor(name);
      weighted_ = weighted_.defined() ? weighted_ + share : share;
    };
  }
  /// By name, before any division.
  const std::map<std::string, Tensor>& sums() const { return sums_; }
  /// All of them together, each over its denominator; undefined where there is none.
  const Tensor& weighted() const { return weighted_; }

 private:
  const Denominators& whole_;
  std::map<std::string, Tensor> sums_;
  Tensor weighted_;
};

}  // namespace tessera::train
