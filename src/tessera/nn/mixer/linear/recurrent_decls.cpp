// Rules, parameters, state and cost of the mixers with a linear recurrence: what needs no tensors.
#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/mixer/linear/delta_net.h"
#include "tessera/nn/mixer/linear/gated_delta_net.h"
#include "tessera/nn/mixer/linear/gla.h"
#include "tessera/nn/mixer/scan/hgrn.h"
#include "tessera/nn/mixer/linear/hgrn2.h"
#include "tessera/nn/mixer/linear/kda.h"
#include "tessera/nn/mixer/linear/lightning_attention.h"
#include "tessera/nn/mixer/linear/linear_attention.h"
#include "tessera/nn/mixer/linear/mlstm.h"
#include "tessera/nn/mixer/linear/retention.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

namespace {

spec::Init xavier(double gain, int64_t out, int64_t in) {
  const double bound = gain * std::sqrt(6.0 / static_cast<double>(out + in));
  return spec::Init::uniform(-bound, bound);
}

}  // namespace

// --- what is shared
// -------------------------------------------------------------------------------

std::vector<spec::StateDecl> RecurrentConfig::state(const spec::Scope&) const {
  return {{"s", spec::StateDecl::Kind::fixed, {n_heads, key_dim, value_dim}}};
}

double RecurrentConfig::extra_flops(const spec::Scope&, int64_t) const {
  return 5.0 * static_cast<double>(n_heads * key_dim * value_dim);  // decay, write, read
}

int64_t RecurrentConfig::head_width(const spec::Scope& scope) const {
  if (scope.d_model % n_heads != 0)
    fail(
        ErrorKind::spec, scope.path,
        "n_heads = {} does not divide d_model = {}; give key_dim and value_dim, or another n_heads",
        n_heads, scope.d_model);
  return scope.d_model / n_heads;
}

void RecurrentConfig::require_causal(const spec::Scope& scope, std::string_view name) {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "{} is causal and cannot stand in an encoder; use attention or linear_attention there",
         name);
}

// --- retention
// ------------------------------------------------------------------------------------

std::vector<double> RetentionConfig::log_decays() const {
  std::vector<double> logs;
  for (int64_t h = 0; h < n_heads; ++h)
    logs.push_back(std::log1p(-std::exp2(-(decay_offset + static_cast<double>(h)))));
  return logs;
}

void RetentionConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "retention");
  if (angles != RetentionAngles::none && key_dim % 2 != 0)
    fail(ErrorKind::spec, scope.path,
         "key_dim = {}; a rotation needs an even number (or \"angles\": \"none\")", key_dim);
  if (angles == RetentionAngles::none && theta != RetentionConfig().theta)
    fail(ErrorKind::spec, scope.path, "theta = {} without angles; set angles, or leave it out",
         theta);
}

void RetentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t d = scope.d_model;
  const double gain = std::exp2(-2.5);
  list.linear("q", keys(), d, false, xavier(gain, keys(), d));
  list.linear("k", keys(), d, false, xavier(gain, keys(), d));
  list.linear("v", values(), d, false, xavier(gain, values(), d));
  list.linear("g", values(), d, false, xavier(gain, values(), d));
  list.linear("o", d, values(), false, xavier(0.5, d, values()));
  if (norm_weight) list.add({"norm.weight", {value_dim}, spec::Init::constant(1), Kind::norm});
}

std::string RetentionConfig::no_state_reason() const {
  if (normalise != RetentionNormalise::scores) return "";
  return "retention with \"normalise\": \"scores\" divides a row by the sum of all its scores, "
         "which a state of fixed size does not hold; take \"decays\", which is the same behind the "
         "norm but for its eps";
}

double RetentionConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  double all = RecurrentConfig::extra_flops(scope, context);
  if (normalise == RetentionNormalise::scores)
    all += static_cast<double>(n_heads * context) * (2.0 * static_cast<double>(key_dim) + 2);
  return all;
}

// --- linear attention
// -----------------------------------------------------------------------------

void LinearAttentionConfig::check(const spec::Scope& scope) const {
  if (feature == FeatureMap::softmax && scope.causal)
    fail(ErrorKind::spec, scope.path,
         "linear_attention with feature softmax needs an encoder: its keys are a softmax over the "
         "whole document; use elu1");
  if (feature == FeatureMap::identity && *normaliser)
    fail(ErrorKind::spec, scope.path,
         "normaliser = true with feature identity can divide by zero; drop the normaliser, or take "
         "another feature");
  if (!*normaliser && eps != LinearAttentionConfig().eps)
    fail(ErrorKind::spec, scope.path,
         "eps = {} without a normaliser; set normaliser, or leave it out", eps);
}

void LinearAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, bias);
  list.linear("k", keys(), scope.d_model, bias);
  list.linear("v", values(), scope.d_model, bias);
  list.linear("o", scope.d_model, values(), bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> LinearAttentionConfig::state(const spec::Scope&) const {
  return {{"s", spec::StateDecl::Kind::fixed, {n_heads, key_dim, columns()}}};
}

// --- gla
// ------------------------------------------------------------------------------------------

void GlaConfig::complete(const spec::Scope& scope) {
  if (key_dim == 0) {
    if (head_width(scope) % 2 != 0)
      fail(ErrorKind::spec, scope.path,
           "d_model / n_heads = {} is odd and key_dim is half of it; give key_dim",
           head_width(scope));
    key_dim = head_width(scope) / 2;
  }
  if (value_dim == 0) value_dim = head_width(scope);
}

void GlaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, false);
  list.linear("k", keys(), scope.d_model, false);
  list.linear("v", values(), scope.d_model, false);
  list.linear("g", values(), scope.d_model, false);
  list.linear("decay_down", decay_rank, scope.d_model, false);
  list.linear("decay_up", keys(), decay_rank, true);
  list.add({"norm.weight", {value_dim}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values(), false, spec::Init::into_stream(scope.n_layers));
}

// --- the delta rule
// -------------------------------------------------------------------------------

namespace {

/// Projections of q, k, v and beta, the convolution, the norm and the output.
void delta_params(spec::ParamList& list,
                  const spec::Scope& scope,
                  const RecurrentConfig& config,
                  int64_t n_key_heads,
                  int64_t d_conv) {
  const int64_t keys = n_key_heads * config.key_dim, values = config.values();
  list.linear("q", keys, scope.d_model, false);
  list.linear("k", keys, scope.d_model, false);
  list.linear("v", values, scope.d_model, false);
  list.linear("beta", config.n_heads, scope.d_model, false);
  if (d_conv > 0)
    declare_conv(list, "conv", {2 * keys + values, d_conv}, conv_init(d_conv), nullptr);
  list.add({"norm.weight", {config.value_dim}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values, false, spec::Init::into_stream(scope.n_layers));
}

/// ln decay = -exp(a_log) softplus(... + dt_bias), as in Mamba.
void step_params(spec::ParamList& list, int64_t n_heads, int64_t steps) {
  using Draw = spec::Init::Kind;
  list.add({"a_log", {n_heads}, {Draw::log_of_uniform, 1, 16, 0}, Kind::structural});
  list.add({"dt_bias", {steps}, {Draw::softplus_log_uniform, 1e-3, 1e-1, 1e-4}, Kind::structural});
}

std::vector<spec::StateDecl> delta_state(const RecurrentConfig& config,
                                         int64_t n_key_heads,
                                         int64_t d_conv) {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out{
      {"s", Kind::fixed, {config.n_heads, config.key_dim, config.value_dim}}};
  if (d_conv > 0)
    out.push_back(conv_state(2 * n_key_heads * config.key_dim + config.values(), d_conv));
  return out;
}

double delta_flops(const RecurrentConfig& config, int64_t n_key_heads, int64_t d_conv) {
  const int64_t channels = 2 * n_key_heads * config.key_dim + config.values();
  return 7.0 * static_cast<double>(config.keys() * config.value_dim) +
         2.0 * static_cast<double>(channels * d_conv);
}

}  // namespace

void DeltaNetConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_heads, d_conv);
  if (gate) list.linear("g", values(), scope.d_model, false);
}
std::vector<spec::StateDecl> DeltaNetConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_heads, d_conv);
}
double DeltaNetConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_heads, d_conv);
}

void GatedDeltaNetConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "gated_delta_net");
  if (n_heads % n_key_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_key_heads = {} does not divide n_heads = {}", n_key_heads,
         n_heads);
}
void GatedDeltaNetConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_key_heads, d_conv);
  list.linear("decay", n_heads, scope.d_model, false);
  step_params(list, n_heads, n_heads);
  if (gate) list.linear("g", values(), scope.d_model, false);
}
std::vector<spec::StateDecl> GatedDeltaNetConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_key_heads, d_conv);
}
double GatedDeltaNetConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_key_heads, d_conv);
}

void KdaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_heads, d_conv);
  list.linear("decay_down", rank, scope.d_model, false);
  list.linear("decay_up", keys(), rank, false);
  step_params(list, n_heads, keys());
  list.linear("g_down", rank, scope.d_model, false);
  list.linear("g_up", values(), rank, false);
}
std::vector<spec::StateDecl> KdaConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_heads, d_conv);
}
double KdaConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_heads, d_conv);
}

// --- lightning attention
// -------------------------------------------------------------------------------------------

std::vector<double> LightningAttentionConfig::log_decays(const spec::Scope& scope) const {
  const auto heads = static_cast<double>(n_heads), layer = static_cast<double>(scope.layer),
             layers = static_cast<double>(scope.n_layers);
  std::vector<double> out;
  for (int64_t i = 0; i < n_heads; ++i) {
    const auto h = static_cast<double>(i);
    out.push_back(slopes == LightningSlopes::minimax
                      ? -std::exp2(-8 * (h + 1) / heads) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)
                      : -(8 / heads) * (1 - layer / layers) * h);
  }
  return out;
}

void LightningAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, false);
  list.linear("k", keys(), scope.d_model, false);
  list.linear("v", values(), scope.d_model, false);
  list.linear("g", values(), scope.d_model, false);
  list.add({"norm.weight", {values()}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values(), false, spec::Init::into_stream(scope.n_layers));
}

// --- HGRN and HGRN2
// -------------------------------------------------------------------------------

void declare_lower_bounds(spec::ParamList& list,
                          const spec::Scope& scope,
                          LowerBound bound,
                          const char* id,
                          int64_t channels) {
  if (bound != LowerBound::learned || scope.layer == 0) return;
  // equal rows: the bound of layer l starts at l / L
  spec::ParamList all = spec::ParamList::shared(id);
  all.add({"lower_bounds", {scope.n_layers, channels}, spec::Init::constant(0), Kind::structural});
  list.append(all);
}

void HgrnConfig::check(const spec::Scope& scope) const {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "hgrn is causal and cannot stand in an encoder; use attention or linear_attention there");
}

void HgrnConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("i", width, scope.d_model, false);
  list.linear("f", width, scope.d_model, false);
  if (d_conv > 0) declare_conv(list, "conv", {2 * width, d_conv}, conv_init(d_conv), nullptr);
  declare_lower_bounds(list, scope, lower_bound, kShared, width);
  list.linear("g", width, scope.d_model, false);
  list.add({"norm.weight", {width}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, width, false, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> HgrnConfig::state(const spec::Scope&) const {
  std::vector<spec::StateDecl> out{{"h", spec::StateDecl::Kind::fixed, {width}}};
  if (d_conv > 0) out.push_back(conv_state(2 * width, d_conv));
  return out;
}

double HgrnConfig::extra_flops(const spec::Scope&, int64_t) const {
  return static_cast<double>(width) * (8.0 + 4.0 * static_cast<double>(d_conv));
}

void Hgrn2Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, false);
  list.linear("f", keys(), scope.d_model, false);
  list.linear("v", values(), scope.d_model, false);
  if (d_conv > 0)
    declare_conv(list, "conv", {2 * keys() + values(), d_conv}, conv_init(d_conv), nullptr);
  declare_lower_bounds(list, scope, lower_bound, kShared, keys());
  list.add({"norm.weight", {values()}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values(), false, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> Hgrn2Config::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out{{"s", Kind::fixed, {n_heads, key_dim, value_dim}}};
  if (d_conv > 0) out.push_back(conv_state(2 * keys() + values(), d_conv));
  return out;
}

// --- mLSTM
// -------------------------------------------------------------------------------------------

void MlstmConfig::complete(const spec::Scope& scope) {
  gate_cap = gate_cap.value_or(up_projection ? 0 : 15);
  norm_eps = norm_eps.value_or(up_projection ? 1e-5 : 1e-6);
  if (up_projection) {
    int64_t& inner = up_projection->d_inner;
    if (inner == 0) inner = 2 * scope.d_model;
    if (inner % n_heads != 0)
      fail(ErrorKind::spec, scope.path, "n_heads = {} does not divide up_projection.d_inner = {}",
           n_heads, inner);
    if (key_dim == 0) key_dim = inner / n_heads;
    if (value_dim == 0) value_dim = inner / n_heads;
    return;
  }
  if (key_dim == 0) {
    if (head_width(scope) % 2 != 0)
      fail(ErrorKind::spec, scope.path,
           "d_model / n_heads = {} is odd and key_dim is half of it; give key_dim",
           head_width(scope));
    key_dim = head_width(scope) / 2;
  }
  if (value_dim == 0) value_dim = head_width(scope);
}

void MlstmConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "mlstm");
  if (!up_projection) return;
  const int64_t inner = up_projection->d_inner;
  if (key_dim != inner / n_heads || value_dim != key_dim)
    fail(ErrorKind::spec, scope.path,
         "key_dim = {} and value_dim = {}; with an up-projection both are d_inner / n_heads = {}: "
         "drop them",
         key_dim, value_dim, inner / n_heads);
  if (inner % up_projection->block != 0)
    fail(ErrorKind::spec, scope.path, "up_projection.block = {} does not divide its d_inner = {}",
         up_projection->block, inner);
  constexpr int64_t kMostHeads = 65536;  // initial values are listed head by head
  if (n_heads > kMostHeads)
    fail(ErrorKind::spec, scope.path, "n_heads = {}; expected at most {}", n_heads, kMostHeads);
}

void MlstmConfig::up_projected_params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t d = scope.d_model, inner = up_projection->d_inner;
  const auto width = static_cast<double>(d);
  const spec::Init small = spec::Init::normal(std::sqrt(2 / (5 * width)));
  list.linear("up", 2 * inner, d, bias, small);
  if (up_projection->d_conv > 0) {
    const spec::Init conv = conv_init(up_projection->d_conv);
    declare_conv(list, "conv", {inner, up_projection->d_conv}, conv, &conv);
  }
  for (const char* name : {"q", "k", "v"})
    list.linear(name, inner, up_projection->block, bias, small);
  // gates that read nothing yet: heads forget at rates from fast to slow
  std::vector<double> forget;
  for (int64_t h = 0; h < n_heads; ++h)
    forget.push_back(n_heads > 1 ? 3 + 3 * static_cast<double>(h) / static_cast<double>(n_heads - 1)
                                 : 3);
  list.linear("i", n_heads, 3 * inner, false, spec::Init::constant(0));
  list.add({"i.bias", {n_heads}, spec::Init::normal(0.1), Kind::bias});
  list.linear("f", n_heads, 3 * inner, false, spec::Init::constant(0));
  list.add({"f.bias", {n_heads}, spec::Init::repeat(forget), Kind::bias});
  list.add({"norm.weight", {inner}, spec::Init::constant(1), Kind::norm});
  list.add({"skip", {inner}, spec::Init::constant(1), Kind::structural});
  list.linear("o", d, inner, bias,
              spec::Init::normal(2 / (static_cast<double>(scope.n_layers) * std::sqrt(width))));
}

void MlstmConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  if (up_projection) return up_projected_params(list, scope);
  list.linear("q", keys(), scope.d_model, bias);
  list.linear("k", keys(), scope.d_model, bias);
  list.linear("v", values(), scope.d_model, bias);
  list.linear("g", values(), scope.d_model, bias);
  // the input gate starts closed, the forget gate open
  list.linear("i", n_heads, scope.d_model, false);
  list.add({"i.bias", {n_heads}, spec::Init::constant(-10), Kind::bias});
  list.linear("f", n_heads, scope.d_model, false);
  list.add({"f.bias", {n_heads}, spec::Init::uniform(3, 6), Kind::bias});
  list.add({"norm.weight", {values()}, spec::Init::constant(1), Kind::norm});
  if (bias) list.add({"norm.bias", {values()}, spec::Init::constant(0), Kind::bias});
  list.linear("o", scope.d_model, values(), bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> MlstmConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  // one more column of values holds the normaliser
  std::vector<spec::StateDecl> out{{"s", Kind::fixed, {n_heads, key_dim, value_dim + 1}},
                                   {"m", Kind::fixed, {n_heads}}};
  if (up_projection && up_projection->d_conv > 0)
    out.push_back(conv_state(up_projection->d_inner, up_projection->d_conv));
  return out;
}

double MlstmConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  double all = RecurrentConfig::extra_flops(scope, context);
  if (up_projection)
    all += 2.0 * static_cast<double>(up_projection->d_inner * up_projection->d_conv);
  return all;
}

}  // namespace tessera::nn
