#include "tessera/nn/norm/batch_norm.h"

namespace tessera::nn {

void BatchNormConfig::check(const spec::Scope& scope) const {
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "norm \"batch_norm\" needs an encoder: in training the statistics of a batch hold the "
         "tokens that a decoder has to predict; use rms_norm or layer_norm");
  if (!scope.of_batch)
    fail(ErrorKind::spec, scope.path,
         "norm \"batch_norm\" inside a part, which does not hold all tokens of a batch; expected "
         "as the norm of a branch or of the stack's end");
}

void BatchNormConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.add_if(affine, {"weight", {scope.width}, spec::Init::constant(1), spec::ParamKind::norm});
  list.add_if(affine, {"bias", {scope.width}, spec::Init::constant(0), spec::ParamKind::bias});
  // counts: tokens, then the sums and the sums of squares of every channel
  const auto running = [&](const char* name, double start, auto of) {
    spec::ParamDecl decl{name, {scope.width}, spec::Init::constant(start), spec::ParamKind::norm};
    decl.trainable = false;
    decl.decay = spec::Decay::no;
    decl.rule = {"moments",
                 [m = momentum, of](std::span<float> values, std::span<const double> counts) {
                   const size_t c = values.size();
                   const double n = counts[0];
                   for (size_t i = 0; i < c; ++i) {
                     const double now = of(n, counts[1 + i], counts[1 + c + i]);
                     values[i] = static_cast<float>((1 - m) * values[i] + m * now);
                   }
                 },
                 1 + 2 * scope.width};
    list.add(std::move(decl));
  };
  running("running_mean", 0, [](double n, double sum, double) { return sum / n; });
  running("running_var", 1, [](double n, double sum, double squares) {
    return n > 1 ? (squares - sum * sum / n) / (n - 1) : 0.0;
  });
}

}  // namespace tessera::nn
