#include "tessera/nn/residual/altup.h"

namespace tessera::nn {
namespace {

/// A square map for every stream but the first.
void declare_maps(spec::ParamList& list, int64_t streams, int64_t width) {
  for (int64_t s = 1; s < streams; ++s) list.linear(std::to_string(s), width, width, /*bias=*/false);
}

}  // namespace

void AltUpConfig::complete(const spec::Scope& scope) {
  if (!norm)
    static_cast<spec::AnyPart&>(norm) = spec::default_part(
        spec::Slot::norm, "rms_norm", child_scope(scope, "norm").at("norm"));
}

void AltUpConfig::check(const spec::Scope& scope) const {
  ResidualConfig::check(scope);
  if (active >= streams)
    fail(ErrorKind::spec, scope.path, "active = {} of {} streams; expected less", active, streams);
  if (of == AltUpOf::layer && correct_scale)
    fail(ErrorKind::spec, scope.path,
         "correct_scale of \"layer\"; expected it of \"others\", whose branch reads what it scales");
  if (of == AltUpOf::others && (clip != 0 || laurel_rank != 0))
    fail(ErrorKind::spec, scope.path,
         "clip and laurel_rank of \"others\", which predicts and corrects nothing; leave them out");
}

void AltUpConfig::group_params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t d = scope.d_model;
  if (of == AltUpOf::others) {
    list.add_if(correct_scale, {.name = "correct_scale",
                                .shape = {d},
                                .init = spec::Init::constant(1),
                                .kind = spec::ParamKind::structural});
    return;
  }
  norm.config->params_under(list, "router_norm", child_scope(scope, "norm"));
  list.linear("router", streams, d, /*bias=*/false);
  // every stream begins as its own prediction, and is corrected as the active one is
  list.linear("predict", streams * streams, streams, /*bias=*/false, spec::Init::constant(0));
  list.linear("correct", streams, streams, /*bias=*/false, spec::Init::constant(0));
  if (laurel_rank == 0) return;
  list.linear("laurel_in", laurel_rank, d, /*bias=*/false);
  list.linear("laurel_out", d, laurel_rank, /*bias=*/false,
              spec::Init::into_stream(scope.n_layers));
  norm.config->params_under(list, "laurel_norm", child_scope(scope, "norm"));
}

void AltUpConfig::enter_params(spec::ParamList& list, const spec::Scope& scope) const {
  declare_maps(list, streams, scope.d_model);
}

void AltUpConfig::leave_params(spec::ParamList& list, const spec::Scope& scope) const {
  declare_maps(list, streams, scope.d_model);
}

}  // namespace tessera::nn
