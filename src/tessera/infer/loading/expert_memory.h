// Expert offloading (mixture of experts): limits the memory of routed experts in a mapped file.
// Only the pages of chosen experts are read. If they exceed the limit after a call, the least used
// experts are released, and read again from the file when they are chosen again. Results do not
// change.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::infer {

class ExpertMemory {
 public:
  /// Throws Error(usage) if no experts of the model are in a mapped file in the type they are
  /// computed from. `most`: bytes; `model` must outlive it.
  ExpertMemory(const model::Model& model, int64_t most);

  /// Receives router counts (nn::StatisticSink).
  void count(const std::string& name, const Tensor& value);
  /// After a call: releases the least used experts until the rest fits.
  void settle();
  /// Bytes of the resident experts.
  int64_t held() const { return held_; }
  bool holds(const std::string& router, int64_t expert) const {
    return experts_.at(router).at(static_cast<size_t>(expert)).held;
  }

 private:
  struct Expert {
    std::vector<std::span<const std::byte>> parts;  // of all its weights
    int64_t bytes = 0;
    double use = 0;  // number of choices, older ones weighted less
    bool held = false;
  };
  int64_t most_, held_ = 0;
  std::map<std::string, std::vector<Expert>> experts_;  // by router
};

}  // namespace tessera::infer
