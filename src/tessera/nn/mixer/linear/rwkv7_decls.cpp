#include "tessera/nn/mixer/linear/rwkv7.h"

#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/linear/rwkv.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

namespace {

int64_t rank_of(double factor, int64_t d_model) {
  const auto rounded =
      static_cast<int64_t>(std::lround(factor * std::sqrt(static_cast<double>(d_model)) / 32));
  return std::max<int64_t>(32, 32 * rounded);
}

}  // namespace

void Rwkv7Config::complete(const spec::Scope& scope) {
  if (key_dim == 0) key_dim = head_width(scope);
  if (value_dim == 0) value_dim = head_width(scope);
  if (decay_rank == 0) decay_rank = rank_of(2.5, scope.d_model);
  if (rate_rank == 0) rate_rank = rank_of(2.5, scope.d_model);
  if (value_rank == 0 && value_residual.value_or(true)) value_rank = rank_of(1.7, scope.d_model);
  if (gate_rank == 0) gate_rank = rank_of(5, scope.d_model);
}

void Rwkv7Config::check(const spec::Scope& scope) const {
  require_causal(scope, "rwkv7");
  if (value_rank != 0 && !value_residual.value_or(true))
    fail(ErrorKind::spec, scope.path,
         "value_rank = {} without a value_residual; set value_residual, or leave it out",
         value_rank);
}

void Rwkv7Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  time_mix_params(list, scope, *this);
  mix_params(list, scope, "rwkvag");
  low_rank_params(list, "decay", keys(), decay_rank, scope.d_model);
  list.add({"decay_up.bias", {keys()}, spec::Init::uniform(-6, -1), Kind::structural});
  low_rank_params(list, "rate", keys(), rate_rank, scope.d_model);
  list.add({"rate_up.bias", {keys()}, spec::Init::constant(0), Kind::structural});
  if (mixes_value(scope)) {
    low_rank_params(list, "value_mix", values(), value_rank, scope.d_model);
    list.add({"value_mix_up.bias", {values()}, spec::Init::constant(1), Kind::structural});
  }
  low_rank_params(list, "gate", values(), gate_rank, scope.d_model);
  list.add({"key_scale", {keys()}, spec::Init::constant(0.85), Kind::structural});
  list.add({"key_rate", {keys()}, spec::Init::constant(1), Kind::structural});
  list.add({"bonus",
            {n_heads, key_dim},
            spec::Init::constant(0),
            Kind::structural,
            {spec::Role::head, spec::Role::none}});
}

void Rwkv7Config::check_behind(const std::vector<spec::Placed>& before,
                               const spec::Scope& scope) const {
  if (!mixes_value(scope)) return;
  // the first rwkv7 layer leaves its values: it was checked to have none to mix with
  for (const spec::Placed& placed : before) {
    const auto* first = dynamic_cast<const Rwkv7Config*>(placed.part.config.get());
    if (first == nullptr) continue;
    if (first->values() != values())
      fail(ErrorKind::spec, scope.path + ".value_residual",
           "mixes {} x {} channels of values with those of {}, which are {} x {}; give both the "
           "same n_heads * value_dim, or set \"value_residual\": false here",
           n_heads, value_dim, placed.scope.path, first->n_heads, first->value_dim);
    return;
  }
  fail(ErrorKind::spec, scope.path + ".value_residual",
       "mixes with the values of an earlier rwkv7 layer and there is none; set "
       "\"value_residual\": false here");
}

std::vector<spec::StateDecl> Rwkv7Config::state(const spec::Scope& scope) const {
  return time_mix_state(*this, scope);
}

double Rwkv7Config::extra_flops(const spec::Scope&, int64_t) const {
  return 9.0 * static_cast<double>(keys() * value_dim);  // read, correct, decay, write, read
}

}  // namespace tessera::nn
