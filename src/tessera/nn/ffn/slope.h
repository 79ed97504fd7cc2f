// The slope s of an activation act(s x) / s, given or learned.
#pragma once

#include "tessera/nn/activation.h"

namespace tessera::nn {

/// Throws Error(spec) where act(s x) / s is act(x), or cannot learn s.
inline void check_slope(Activation act, double slope, bool learned, const spec::Scope& scope) {
  if (learned && act != Activation::silu)
    fail(ErrorKind::spec, scope.path, "learned_slope with act {}; expected silu, which makes Swish",
         spec::enum_name(act));
  if (slope != 1 && (act == Activation::relu || act == Activation::identity))
    fail(ErrorKind::spec, scope.path,
         "slope = {} with act {}, for which act(s g) / s is act(g); leave it out", slope,
         spec::enum_name(act));
}
/// Where it is learned, declares it as "slope".
inline void declare_slope(spec::ParamList& list, double slope, bool learned) {
  list.add_if(learned, {"slope", {1}, spec::Init::constant(slope), spec::ParamKind::structural});
}

}  // namespace tessera::nn
