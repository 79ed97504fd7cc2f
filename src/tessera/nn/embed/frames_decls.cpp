#include "tessera/nn/embed/frames.h"

namespace tessera::nn {

void FramesConfig::check(const spec::Scope& scope) const {
  require_encoder("frames", scope);
  if (kernel % 2 == 0)
    fail(ErrorKind::spec, scope.path, "kernel = {}; expected an odd number", kernel);
  if (strides.empty())
    fail(ErrorKind::spec, scope.path,
         "strides = []; expected the step of at least one convolution");
}

void FramesConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  for (size_t i = 0; i < strides.size(); ++i)
    list.linear(fmt::format("conv{}", i), scope.d_model,
                (i == 0 ? channels : scope.d_model) * kernel, bias);
  declare_position_and_norm(list, scope);
}

int64_t FramesConfig::tokens(const std::vector<int64_t>& shape) const {
  if (shape.size() != 2 || shape[0] != channels || shape[1] < 1) return 0;
  int64_t frames = shape[1];
  for (const int64_t stride : strides) frames = (frames - 1) / stride + 1;
  return frames;
}

std::vector<int64_t> FramesConfig::shape_of(int64_t n) const {
  int64_t frames = n;
  for (const int64_t stride : strides) frames = (frames - 1) * stride + 1;
  return {channels, frames};
}

}  // namespace tessera::nn
