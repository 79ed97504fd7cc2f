// A bound on the memory of routed experts that lie in a mapped file. Only the pages of experts that
// are chosen are read at all; where they are more than the bound after a call, those of the least
// used ones go, and are read from the file again when they are chosen again. What is computed does
// not change.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::infer {

class ExpertMemory {
 public:
  /// Throws Error(usage) where no experts of the model lie in a mapped file as they are computed
  /// from. `most`: bytes; `model` must outlive it.
  ExpertMemory(const model::Model& model, int64_t most);

  /// What routers count (nn::StatisticSink).
  void count(const std::string& name, const Tensor& value);
  /// After a call: lets go of the least used experts until the rest fits.
  void settle();
  /// Bytes of the experts that have been read and not let go of.
  int64_t held() const { return held_; }
  bool holds(const std::string& router, int64_t expert) const {
    return experts_.at(router).at(static_cast<size_t>(expert)).held;
  }

 private:
  struct Expert {
    std::vector<std::span<const std::byte>> parts;  // of all its weights
    int64_t bytes = 0;
    double use = 0;  // choices, of which older ones count less
    bool held = false;
  };
  int64_t most_, held_ = 0;
  std::map<std::string, std::vector<Expert>> experts_;  // by router
};

}  // namespace tessera::infer
