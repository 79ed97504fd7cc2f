// Which tokens a layer computes, and how what it makes of them joins the stream.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct DepthConfig : spec::Config {
  /// Whether the layer sees some tokens of a row alone, in inference too: its branches then keep
  /// states of those.
  virtual bool selective() const { return false; }
  /// Neighbouring layers that name the same are the steps of one loop, whose last one gives what it
  /// ends with. "" = the layer is alone.
  virtual std::string loop() const { return ""; }
  /// Of the tokens, how many it computes in inference.
  virtual double share() const { return 1; }
};

}  // namespace tessera::nn
