// Statistics of expert usage (mixture of experts), from router counts (nn::StatisticSink), in
// training and in generation.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/nn/context.h"
#include "tessera/spec/json.h"

namespace tessera::infer {

class ExpertUse {
 public:
  void add(const std::string& name, const Tensor& value);
  bool empty() const { return sums_.empty(); }

  /// By router ("layers.3.ffn.router"): `load`, each expert's share of the choices; `entropy`, nats
  /// per token of the router's probabilities if it has any; `dropped`, the share of choices without
  /// capacity; `together`, the pairs of experts chosen most often by one token, [i, j, share of the
  /// tokens], at most eight.
  spec::Json to_json() const;

  /// A router that gives at least half of its experts less than a tenth of an even share.
  struct Collapse {
    std::string router;
    int64_t idle = 0, experts = 0;
    std::string text() const;
  };
  /// Collapsed routers, among those with at least 20 choices per expert, so that it is not by
  /// chance.
  std::vector<Collapse> collapsed() const;

 private:
  std::map<std::string, std::map<std::string, Tensor>> sums_;  // by router and statistic
};

}  // namespace tessera::infer
