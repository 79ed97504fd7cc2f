#include "tessera/nn/mixer/attention/flash_gau.h"

#include <algorithm>

#include "tessera/nn/mixer/attention/gau.h"

namespace tessera::nn {

void FlashGauConfig::check(const spec::Scope& scope) const {
  refuse_value_position(position, scope);
}

void FlashGauConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  gau_params(list, scope, d_hidden, d_key, 4);
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> FlashGauConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  return {{"k", Kind::fixed, {group, d_key}},  // of the open group, in the order of its tokens
          {"k_linear", Kind::fixed, {group, d_key}},
          {"v", Kind::fixed, {group, d_hidden}},
          {"sum", Kind::fixed, {d_key, d_hidden}}};  // over the groups before it
}

double FlashGauConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const auto seen = static_cast<double>(std::min(context, group));
  return 2.0 * static_cast<double>(d_key + d_hidden) * seen +
         4.0 * static_cast<double>(d_key * d_hidden);
}

}  // namespace tessera::nn
