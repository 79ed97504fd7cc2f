// Parts whose output is as wide as their input.
#pragma once

namespace tessera::nn {

/// Of a config: its part reads any width and gives as many channels. Where the branch adds to
/// fewer, the spec is refused.
class WideOutput {
 public:
  virtual ~WideOutput() = default;
};

}  // namespace tessera::nn
