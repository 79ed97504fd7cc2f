#include "tessera/nn/mixer/attention/gau.h"

namespace tessera::nn {

void gau_params(
    spec::ParamList& list, const spec::Scope& scope, int64_t hidden, int64_t key, int64_t copies) {
  list.linear("in", 2 * hidden + key, scope.d_model, false);
  list.add({"gamma", {copies, key}, spec::Init::normal(0.02), spec::ParamKind::structural});
  list.add({"beta", {copies, key}, spec::Init::constant(0), spec::ParamKind::bias});
  list.linear("out", scope.d_model, hidden, false, spec::Init::into_stream(scope.n_layers));
}

void refuse_value_position(const spec::AnyPart& position, const spec::Scope& scope) {
  if (position && position.as<PositionConfig>().adds_values())
    fail(ErrorKind::spec, scope.path,
         "position \"{}\" adds vectors of d_key channels to the values, which have d_hidden; set "
         "its \"values\" to false",
         position.type());
}

void GauConfig::check(const spec::Scope& scope) const {
  if (scope.causal && divisor == GauDivisor::length)
    fail(ErrorKind::spec, scope.path,
         "divisor length needs an encoder: in a decoder every output would change as the sequence "
         "grows; use count or max_length");
  if (dropout > 0 && weights != GauWeights::softmax)
    fail(ErrorKind::spec, scope.path,
         "dropout = {} acts on the weights of a softmax; expected 0 with weights relu2 or laplace",
         dropout);
  if (weights == GauWeights::softmax && divisor != GauDivisor::count)
    fail(ErrorKind::spec, scope.path,
         "divisor {} with weights softmax, which has no divisor; leave it out, or use relu2",
         spec::enum_name(divisor));
  if (divisor != GauDivisor::max_length && max_length != GauConfig().max_length)
    fail(ErrorKind::spec, scope.path,
         "max_length = {} without divisor max_length; set divisor, or leave it out", max_length);
  refuse_value_position(position, scope);
  if (grows(scope.causal) && position && position.as<PositionConfig>().takes_scale())
    fail(ErrorKind::spec, scope.path,
         "position \"{}\" takes the factor on the scores, which differs from query to query with "
         "divisor count; use divisor max_length, or weights softmax",
         position.type());
}

void GauConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  gau_params(list, scope, d_hidden, d_key, 2);
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> GauConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  return {{"k", Kind::per_token, {1, d_key}}, {"v", Kind::per_token, {1, d_hidden}}};
}

double GauConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 2.0 * static_cast<double>(d_key + d_hidden) * static_cast<double>(context);
}

}  // namespace tessera::nn
