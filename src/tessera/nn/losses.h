// Losses that parts add to training.
#pragma once

#include "tessera/nn/context.h"

namespace tessera::nn {

/// Takes a part's own loss, a sum over the tokens of the call, under a name.
using LossSink = std::function<void(const std::string& name, const Tensor& loss)>;

/// Lets the parts of a call add losses.
inline void set_loss_sink(Context& context, const LossSink& sink) {
  if (sink) context.shared["losses"] = sink;
}

/// The sink of a call; empty where nobody asks for losses.
inline LossSink loss_sink(const Context& context) {
  const auto found = context.shared.find("losses");
  return found == context.shared.end() ? LossSink() : std::any_cast<LossSink>(found->second);
}

}  // namespace tessera::nn
