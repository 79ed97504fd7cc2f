#include <cmath>

#include "tessera/nn/mixer/transform/fourier.h"

namespace tessera::nn {

void FourierConfig::check(const spec::Scope& scope) const {
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "fourier needs an encoder: every output reads the whole document; in a decoder use "
         "attention, or hyena for long convolutions");
  if (transform != Transform::random && seed != 0)
    fail(ErrorKind::spec, scope.path,
         "seed = {} with transform {}, which draws nothing; set transform to random, or leave it "
         "out",
         seed, spec::enum_name(transform));
  if (transform != Transform::fourier && (real != RealPart::once || blend != 1))
    fail(ErrorKind::spec, scope.path,
         "real and blend are of transform fourier, and it is {}; leave them out",
         spec::enum_name(transform));
  if ((transform != Transform::fourier || learns()) && max_length == 0)
    fail(ErrorKind::spec, scope.path,
         "max_length = 0; expected the longest document, which the matrix over tokens is made for");
}

void FourierConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  if (!learns()) return;
  list.linear("tokens", max_length, max_length, false);
  list.linear("channels", scope.d_model, scope.d_model, false);
}

double FourierConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const auto d = static_cast<double>(scope.d_model), t = static_cast<double>(context);
  if (transform == Transform::learned) return 2 * t * d;
  if (transform == Transform::random) return 2 * (t + d) * d;
  return 5 * d * (std::log2(std::max(d, 2.0)) + std::log2(std::max(t, 2.0))) +
         (learns() ? 2 * t * d : 0);
}

}  // namespace tessera::nn
