// Routers whose experts have limited room (capacity.h), beyond what they choose.
#pragma once

#include "tessera/nn/router/capacity.h"
#include "tessera/nn/router/routing.h"

namespace tessera::nn {

class BoundedRouter : public LearnedRouter {
 protected:
  BoundedRouter(const CapacityConfig& config, const Builder& builder)
      : LearnedRouter(config, builder),
        factor_(config.capacity_factor),
        capacity_(config.capacity),
        group_(config.group),
        drop_(config.drop) {}

  bool drops(const Context& context) const { return drop_ == Dropping::always || context.training; }
  /// The choices [N, K] with -1 in place of those that have no room; all of them where nothing is
  /// dropped. `sureness_N`: which tokens have room first; undefined = in their order.
  Tensor with_room(const Tensor& expert_NK, const Tensor& sureness_N, Context& context) const;

 private:
  double factor_;
  int64_t capacity_;
  CapacityGroup group_;
  Dropping drop_;
};

}  // namespace tessera::nn
