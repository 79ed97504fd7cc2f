// Some tokens of a batch as a batch of their own.
#pragma once

#include "tessera/nn/parts.h"

namespace tessera::nn {

struct ChosenTokens {
  std::vector<int64_t> tokens;  // in the whole batch, rising
  Batch batch;                  // of them; segments without any are left out

  /// `chosen`: one for each token of `whole`. `layer` counts the tokens seen of a segment's row.
  static ChosenTokens of(const Batch& whole,
                         const std::vector<uint8_t>& chosen,
                         const DepthLayer& layer,
                         const Context& context);
  /// The call over them, without a probe or replaced inputs: its rows are not those of the
  /// whole call.
  Context context(const Context& whole) const;
};

}  // namespace tessera::nn
