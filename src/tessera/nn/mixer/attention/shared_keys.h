// Keys and values that layers share (KvSharingConfig) in a call: of its tokens through
// Context::values, what rows hold of earlier ones through Context::keys.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/kv_sharing.h"

namespace tessera::nn {

class SharedKeys {
 public:
  explicit SharedKeys(const KvSharingConfig& config) : name_(config.kv_name), of_(config.kv_of) {}

  /// Leaves the layer's own for later ones, where it has a name: k [N, G, D], v [N, G, V].
  void leave(const Tensor& k_NGD, const Tensor& v_NGV, Context& context) const;
  /// Those of the earlier layer. Throws Error(internal) where it left none.
  std::pair<Tensor, Tensor> of_earlier(const Context& context) const;

  /// Whether the call reads what the earlier layer's rows hold.
  bool reads_past(const Context& context) const {
    return !of_.empty() && context.call.state != nullptr;
  }
  /// That, for every segment, the call's own included.
  const SharedKeyValues::Lists& past(const Context& context) const { return context.keys.at(of_); }
  /// Has the rows keep the call's entries: at once, or after the last layer where later ones read
  /// them.
  void keep(std::vector<PatternMask::Past> pasts, Context& context) const;

 private:
  std::string name_, of_;
};

}  // namespace tessera::nn
