#include "tessera/nn/mixer/scan/mamba2.h"

#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

void Mamba2Config::complete(const spec::Scope& scope) {
  if (head_dim == 0) {
    if (2 * scope.d_model % n_heads != 0)
      fail(ErrorKind::spec, scope.path,
           "n_heads = {} does not divide 2 * d_model = {}; give head_dim, or another n_heads",
           n_heads, 2 * scope.d_model);
    head_dim = 2 * scope.d_model / n_heads;
  }
  if (d_ssm == 0) d_ssm = inner();
}

void Mamba2Config::check(const spec::Scope& scope) const {
  require_causal(scope, "mamba2", "attention");
  if (d_ssm > inner() || d_ssm % head_dim != 0)
    fail(ErrorKind::spec, scope.path,
         "d_ssm = {}; expected whole heads of head_dim = {}, at most n_heads * head_dim = {}",
         d_ssm, head_dim, inner());
  if (heads() % n_groups != 0)
    fail(ErrorKind::spec, scope.path, "n_groups = {} does not divide {} = {}", n_groups,
         beside() == 0 ? "n_heads" : "d_ssm / head_dim", heads());
  if (norm_groups > 0 && d_ssm % norm_groups != 0)
    fail(ErrorKind::spec, scope.path, "norm_groups = {} does not divide {} = {}", norm_groups,
         beside() == 0 ? "n_heads * head_dim" : "d_ssm", d_ssm);
  if (norm_groups == 0 && norm_eps != Mamba2Config().norm_eps)
    fail(ErrorKind::spec, scope.path,
         "norm_eps = {} without a norm; set norm_groups, or leave it out", norm_eps);
  if (dt_max && *dt_max < dt_min)
    fail(ErrorKind::spec, scope.path, "dt_max = {} is below dt_min = {}", *dt_max, dt_min);
  if (levels == 1 || levels > 48)
    fail(ErrorKind::spec, scope.path,
         "levels = {}; expected 2 to 48 (documents of at most 2^(levels - 1) tokens), or 0 for one "
         "state of all tokens",
         levels);
}

void Mamba2Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  using Kind = spec::ParamKind;
  const int64_t channels = conv_channels();
  list.linear("in", 2 * beside() + d_ssm + channels + heads() * (1 + levels), scope.d_model,
              proj_bias);
  const spec::Init conv = conv_init(d_conv);
  declare_conv(list, "conv", {channels, d_conv}, conv, conv_bias ? &conv : nullptr);
  list.add({"dt_bias",
            {heads()},
            {spec::Init::Kind::softplus_log_uniform, 1e-3, 1e-1, 1e-4},
            Kind::structural,
            {spec::Role::head}});
  list.add({"a_log",
            {heads()},
            {spec::Init::Kind::log_of_uniform, 1, 16, 0},
            Kind::structural,
            {spec::Role::head}});
  list.add({"d", {d_per_channel ? d_ssm : heads()}, spec::Init::constant(1), Kind::structural});
  list.add_if(levels > 0, {"level_scale",
                           {heads(), levels},
                           spec::Init::constant(1),
                           Kind::structural,
                           {spec::Role::head, spec::Role::none}});
  list.add_if(norm_groups > 0, {"norm.weight", {d_ssm}, spec::Init::constant(1), Kind::norm});
  list.linear("out", scope.d_model, inner(), proj_bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> Mamba2Config::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<int64_t> shape{heads(), head_dim, d_state};
  if (levels > 0) shape.insert(shape.begin(), levels - 1);
  return {{"ssm", Kind::fixed, shape}, conv_state(conv_channels(), d_conv)};
}

double Mamba2Config::extra_flops(const spec::Scope&, int64_t context) const {
  // a token reads the blocks of the bits of its position, of which half are set
  const double blocks =
      levels == 0 ? 1 : 1 + std::log2(static_cast<double>(std::max<int64_t>(1, context))) / 2;
  return 6.0 * blocks * static_cast<double>(d_ssm * d_state) +
         2.0 * static_cast<double>(conv_channels() * d_conv);
}

}  // namespace tessera::nn
