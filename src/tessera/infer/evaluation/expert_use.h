// What experts are used for, out of what routers count (nn::StatisticSink): in training and in
// generation.
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
  /// a token of the router's probabilities where it has some; `dropped`, the share of the choices
  /// without room; `together`, the pairs of experts chosen most often by one token, [i, j, share of
  /// the tokens], at most eight.
  spec::Json to_json() const;

  /// A router of which at least half the experts got under a tenth of an even share.
  struct Collapse {
    std::string router;
    int64_t idle = 0, experts = 0;
    std::string text() const;
  };
  /// Of routers with so many choices that chance does not make them: 20 an expert.
  std::vector<Collapse> collapsed() const;

 private:
  std::map<std::string, std::map<std::string, Tensor>> sums_;  // by router and what is counted
};

}  // namespace tessera::infer
