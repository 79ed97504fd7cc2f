// Rules, parameters, state and cost of the RWKV mixers: what needs no tensors.
#include <cmath>

#include "tessera/nn/mixer/linear/recurrent_config.h"
#include "tessera/nn/mixer/linear/rwkv5.h"
#include "tessera/nn/mixer/linear/rwkv6.h"
#include "tessera/nn/mixer/linear/rwkv7.h"
#include "tessera/nn/mixer/linear/rwkv_channel_mix.h"

namespace tessera::nn {
namespace {

using Kind = spec::ParamKind;

/// r, k, v and the output, the heads' norm.
void time_mix_params(spec::ParamList& list, const spec::Scope& scope, const RecurrentConfig& c) {
  list.linear("r", c.keys(), scope.d_model, false);
  list.linear("k", c.keys(), scope.d_model, false);
  list.linear("v", c.values(), scope.d_model, false);
  list.add({"norm.weight", {c.values()}, spec::Init::constant(1), Kind::norm});
  list.add({"norm.bias", {c.values()}, spec::Init::constant(0), Kind::bias});
  list.linear("o", scope.d_model, c.values(), false, spec::Init::into_stream(scope.n_layers));
}

/// How much of the token before, or of the present one, each channel takes: the published ramps
/// over channels cover (0, 1).
void mix_params(spec::ParamList& list, const spec::Scope& scope, std::string_view names) {
  for (const char name : names)
    list.add(
        {std::string("mix_") + name, {scope.d_model}, spec::Init::uniform(0, 1), Kind::structural});
}

/// x -> up(down(x)) + bias: inner weights start at zero, as published.
void low_rank(
    spec::ParamList& list, const std::string& name, int64_t out, int64_t rank, int64_t in) {
  list.linear(name + "_down", rank, in, false, spec::Init::constant(0));
  list.linear(name + "_up", out, rank, false, spec::Init::uniform(-0.01, 0.01));
}

std::vector<spec::StateDecl> time_mix_state(const RecurrentConfig& c, const spec::Scope& scope) {
  using Kind = spec::StateDecl::Kind;
  return {{"s", Kind::fixed, {c.n_heads, c.key_dim, c.value_dim}},
          {"last", Kind::fixed, {scope.d_model}}};
}

int64_t rank_of(double factor, int64_t d_model) {
  const auto rounded =
      static_cast<int64_t>(std::lround(factor * std::sqrt(static_cast<double>(d_model)) / 32));
  return std::max<int64_t>(32, 32 * rounded);
}

}  // namespace

// --- rwkv5
// ----------------------------------------------------------------------------------------

void Rwkv5Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  time_mix_params(list, scope, *this);
  if (gate) list.linear("g", values(), scope.d_model, false);
  mix_params(list, scope, gate ? "rkvg" : "rkv");
  list.add({"decay", {n_heads, key_dim}, spec::Init::uniform(-6, -1), Kind::structural});
  list.add({"bonus", {n_heads, key_dim}, spec::Init::uniform(-0.1, 1), Kind::structural});
}

std::vector<spec::StateDecl> Rwkv5Config::state(const spec::Scope& scope) const {
  return time_mix_state(*this, scope);
}

// --- rwkv6
// ----------------------------------------------------------------------------------------

void Rwkv6Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  time_mix_params(list, scope, *this);
  list.linear("g", values(), scope.d_model, false);
  mix_params(list, scope, "xwkvrg");
  list.linear("mix_down", 5 * mix_rank, scope.d_model, false, spec::Init::constant(0));
  for (const char name : std::string_view("wkvrg"))
    list.linear(std::string("mix_up_") + name, scope.d_model, mix_rank, false,
                spec::Init::uniform(-0.01, 0.01));
  low_rank(list, "decay", keys(), decay_rank, scope.d_model);
  list.add({"decay_up.bias", {keys()}, spec::Init::uniform(-6, -1), Kind::structural});
  list.add({"bonus", {n_heads, key_dim}, spec::Init::uniform(-0.1, 1), Kind::structural});
}

std::vector<spec::StateDecl> Rwkv6Config::state(const spec::Scope& scope) const {
  return time_mix_state(*this, scope);
}

// --- rwkv7
// ----------------------------------------------------------------------------------------

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
  low_rank(list, "decay", keys(), decay_rank, scope.d_model);
  list.add({"decay_up.bias", {keys()}, spec::Init::uniform(-6, -1), Kind::structural});
  low_rank(list, "rate", keys(), rate_rank, scope.d_model);
  list.add({"rate_up.bias", {keys()}, spec::Init::constant(0), Kind::structural});
  if (mixes_value(scope)) {
    low_rank(list, "value_mix", values(), value_rank, scope.d_model);
    list.add({"value_mix_up.bias", {values()}, spec::Init::constant(1), Kind::structural});
  }
  low_rank(list, "gate", values(), gate_rank, scope.d_model);
  list.add({"key_scale", {keys()}, spec::Init::constant(0.85), Kind::structural});
  list.add({"key_rate", {keys()}, spec::Init::constant(1), Kind::structural});
  list.add({"bonus", {n_heads, key_dim}, spec::Init::constant(0), Kind::structural});
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

// --- channel mixing
// -------------------------------------------------------------------------------

void RwkvChannelMixConfig::complete(const spec::Scope& scope) {
  if (d_hidden != 0) return;
  const bool wide = version == RwkvVersion::rwkv4 || version == RwkvVersion::rwkv7;
  d_hidden = wide ? 4 * scope.d_model : std::max<int64_t>(32, scope.d_model * 7 / 2 / 32 * 32);
}

void RwkvChannelMixConfig::check(const spec::Scope& scope) const {
  if (!scope.causal)
    fail(
        ErrorKind::spec, scope.path,
        "rwkv_channel_mix reads the token before and cannot stand in an encoder; use an ffn there");
}

void RwkvChannelMixConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("k", d_hidden, scope.d_model, false);
  list.linear("v", scope.d_model, d_hidden, false, spec::Init::into_stream(scope.n_layers));
  if (gated()) list.linear("r", scope.d_model, scope.d_model, false);
  mix_params(list, scope, gated() ? "kr" : "k");
}

std::vector<spec::StateDecl> RwkvChannelMixConfig::state(const spec::Scope& scope) const {
  return {{"last", spec::StateDecl::Kind::fixed, {scope.d_model}}};
}

}  // namespace tessera::nn
