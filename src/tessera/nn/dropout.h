// Dropout of the tokens of a call.
#pragma once

#include "tessera/nn/context.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/random.h"
#include "tessera/ops/weights/input_drops.h"

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

/// The same of what adapters read of the tokens of `batch`, each weight a site, for as long as
/// anything keeps it; null outside training. Rows that are not those tokens are refused with
/// Error(usage): they have no random numbers of their own.
inline ops::InputDrops::DropPtr input_drops(const Context& context, const Batch& batch) {
  if (!context.training) return nullptr;
  return std::make_shared<const ops::InputDrops::Drop>(
      [key = context.key.fold("adapter"), segments = batch.segments, lengths = lengths_of(batch)](
          const Tensor& x, double p, const std::string& weight) {
        const Tensor rows = x.reshape({-1, x.size(-1)});
        const int64_t tokens =
            segments.empty() ? 0 : segments.back().begin + segments.back().length;
        if (rows.size(0) != tokens)
          fail(ErrorKind::usage, "adapter",
               "{} reads {} rows in a call of {} tokens; dropout is of tokens: expected dropout 0 "
               "beside it",
               weight, rows.size(0), tokens);
        std::vector<RandomKey> streams;
        for (const Segment& s : segments) streams.push_back(s.stream(key.fold(weight)));
        return ops::dropout(rows, p, lengths, streams).reshape(x.sizes());
      });
}

}  // namespace tessera::nn
