// Dropout of the tokens of a call.
#pragma once

#include "tessera/nn/context.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/random.h"

namespace tessera::nn {

/// x_ND with dropout at the site `name`, in training; every segment draws from a stream of its own.
inline Tensor dropout(const Tensor& x_ND,
                      double p,
                      const std::string& name,
                      const Context& context) {
  if (!context.training || p == 0) return x_ND;
  const RandomKey site = context.key.fold(name);
  std::vector<RandomKey> streams;
  for (const Segment& s : context.batch->segments) streams.push_back(s.stream(site));
  return ops::dropout(x_ND, p, lengths_of(*context.batch), streams);
}

}  // namespace tessera::nn
