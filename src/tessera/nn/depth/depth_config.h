// Which tokens a layer computes, and how what it makes of them joins the stream.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct DepthConfig : spec::Config {
  /// Whether the layer sees some tokens of a row alone, in inference too: its branches then keep
  /// states of those.
  virtual bool selective() const { return false; }
  /// Of the tokens, how many it computes in inference.
  virtual double share() const { return 1; }
};

}  // namespace tessera::nn
