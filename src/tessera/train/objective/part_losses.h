// Losses that parts add in a forward pass (model::ForwardOptions::add_loss), each a mean over the
// tokens of its stack in the whole update.
#pragma once

#include <algorithm>

#include "tessera/train/objective/objective.h"

namespace tessera::train {

class PartLosses {
 public:
  /// `whole`, the denominators of the update, must outlive it.
  explicit PartLosses(const Denominators& whole) : whole_(whole) {}
  /// Collects losses until this object is destroyed.
  nn::LossSink sink() {
    return [this](const std::string& name, const Tensor& sum) {
      const auto [known, added] = sums_.emplace(name, sum.detach());
      if (!added) known->second = known->second + sum.detach();
      const Tensor share = sum / whole_.divisor(name);
      weighted_ = weighted_.defined() ? weighted_ + share : share;
    };
  }
  /// By name, not divided.
  const std::map<std::string, Tensor>& sums() const { return sums_; }
  /// The sum of all, each over its denominator; undefined if there is none.
  const Tensor& weighted() const { return weighted_; }

 private:
  const Denominators& whole_;
  std::map<std::string, Tensor> sums_;
  Tensor weighted_;
};

}  // namespace tessera::train
