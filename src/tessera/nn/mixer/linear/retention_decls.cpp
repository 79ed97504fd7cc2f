#include "tessera/nn/mixer/linear/retention.h"

#include <cmath>

namespace tessera::nn {

using Kind = spec::ParamKind;

namespace {

spec::Init xavier(double gain, int64_t out, int64_t in) {
  const double bound = gain * std::sqrt(6.0 / static_cast<double>(out + in));
  return spec::Init::uniform(-bound, bound);
}

}  // namespace

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
  std::vector<double> logits;  // sigmoid^-1(gamma)
  for (const double log_decay : log_decays())
    logits.push_back(log_decay - std::log(-std::expm1(log_decay)));
  list.add_if(
      decay == RetentionDecay::learned,
      {"decay", {n_heads}, spec::Init::repeat(logits), Kind::structural, {spec::Role::head}});
  list.add_if(norm_weight, {"norm.weight", {value_dim}, spec::Init::constant(1), Kind::norm});
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

}  // namespace tessera::nn
