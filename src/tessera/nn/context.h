// What the parts of one call share.
#pragma once

#include <any>
#include <functional>
#include <map>
#include <string>

#include "tessera/base/cancel.h"
#include "tessera/base/rng.h"
#include "tessera/nn/batch.h"

namespace tessera::nn {

/// What an encoder made of the sources of some rows: x_SD, one vector per token of `source`, whose
/// segments name the rows that read them.
struct Encoded {
  Batch source;
  Tensor x_SD;
  /// The source of a row, or nullptr.
  const Segment* of_row(int64_t row) const;
};

struct Context {
  const Batch* batch = nullptr;
  const Encoded* encoded = nullptr;  // sources that this call brings; rows of a state keep theirs
  bool causal = true;
  bool training = false;   // dropout and other noise act
  RandomKey key{0};        // folded by seed and step; parts fold in their own name
  int64_t step = 0;        // of training, from 0; the same in all parts of its batch
  int64_t layer = 0;       // invocation being computed
  bool runs_once = false;  // what the call computes cannot be computed again: its state moves on
  const CancelToken* cancel = nullptr;
  /// Called with named intermediates ("layers.3.mixer.out") where set.
  std::function<void(const std::string&, const Tensor&)> probe;
  /// Values computed once per call and shared between layers (rotary tables), by name.
  std::map<std::string, std::any> shared;
  /// Values that follow from the weights alone and are kept from call to call beside a state (keys
  /// of distances), by name; nullptr where there is no state.
  std::map<std::string, std::any>* lasting = nullptr;

  /// How often what training draws anew every `steps` steps has been, 0 = never; outside training
  /// the first draw stays.
  int64_t draws(int64_t steps) const { return training && steps > 0 ? step / steps : 0; }

  template <class T, class Make>
  const T& once(const std::string& name, Make make) {
    auto found = shared.find(name);
    if (found == shared.end()) found = shared.emplace(name, std::any(T(make()))).first;
    return std::any_cast<const T&>(found->second);
  }
};

}  // namespace tessera::nn
