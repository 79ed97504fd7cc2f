#include <cmath>

#include "tessera/nn/mixer/attention/latent_attention.h"
#include "tessera/nn/position/rope.h"
#include "tessera/nn/rope_scaling/yarn.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {
namespace {

/// The yarn scaling of the position scheme, nullptr when it has none.
const YarnScalingConfig* yarn_of(const spec::AnyPart& position) {
  const auto* rope = position ? dynamic_cast<const RopeConfig*>(position.config.get()) : nullptr;
  return rope != nullptr && rope->scaling
             ? dynamic_cast<const YarnScalingConfig*>(rope->scaling.config.get())
             : nullptr;
}

}  // namespace

void LatentAttentionConfig::check(const spec::Scope& scope) const {
  if (scale == LatentScale::yarn_mscale && yarn_of(position) == nullptr)
    fail(ErrorKind::spec, scope.path,
         "scale yarn_mscale without a yarn scaling; give position {{\"type\": \"rope\", "
         "\"scaling\": {{\"type\": \"yarn\", ..}}}}, or scale rsqrt_head_dim");
  if (scale_value != 1 && scale != LatentScale::value)
    fail(ErrorKind::spec, scope.path,
         "scale_value = {} with scale {}, which takes no number; set scale \"value\", or leave it "
         "out",
         scale_value, spec::enum_name(scale));
  if (q_latent_scale != 1 && q_lora_rank == 0)
    fail(ErrorKind::spec, scope.path,
         "q_latent_scale = {} without a query latent; set q_lora_rank, or leave it out",
         q_latent_scale);
  if (qk_rope_head_dim == 0 && position && position.info().place == spec::Place::rotation)
    fail(ErrorKind::spec, scope.path,
         "qk_rope_head_dim = 0 leaves position \"{}\" nothing to rotate; give it channels, or "
         "position \"none\"",
         position.type());
  if (q_latent != QueryLatent::normed && q_lora_rank == 0)
    fail(ErrorKind::spec, scope.path,
         "q_latent {} without a query latent; set q_lora_rank, or leave it out",
         spec::enum_name(q_latent));
  if (gate_of != LatentGateSource::input && !gates())
    fail(ErrorKind::spec, scope.path,
         "gate_of {} without a gate; set gate headwise or elementwise, or leave it out",
         spec::enum_name(gate_of));
  if (rope_norm && qk_rope_head_dim == 0)
    fail(ErrorKind::spec, scope.path,
         "rope_norm with qk_rope_head_dim = 0, which leaves it nothing to norm; leave it out");
  temperature.check(scope);
  check_pattern(pattern, position, n_heads, scope);
  check_one_projection(pattern, "latent_attention", scope);
  check_select(select, pattern, position, scope);
  if (position && position.as<PositionConfig>().adds_values())
    fail(
        ErrorKind::spec, scope.path,
        "position \"{}\" adds to the values, which are read from the latent; set its \"values\" to "
        "false",
        position.type());
}

void LatentAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const auto norm = [&](std::string_view name, int64_t width) {
    if (!latent_norm) return;
    spec::Scope norm_scope = scope;
    norm_scope.width = width;
    latent_norm.config->params_under(list, name, norm_scope);
  };
  if (q_lora_rank > 0) {
    list.linear("q_a", q_lora_rank, scope.d_model, bias);
    norm("q_norm", q_lora_rank);
    list.linear("q_b", n_heads * head_dim(), query_width(scope), false);
  } else {
    list.linear("q", n_heads * head_dim(), scope.d_model, false, spec::Init::query(head_dim()));
  }
  list.linear("kv_a", entry(), scope.d_model, bias);
  norm("kv_norm", kv_lora_rank);
  // rows of a head together, each as it is multiplied when absorbed: the key's matrix from the
  // right
  list.linear("k_b", n_heads * kv_lora_rank, qk_nope_head_dim, false);
  list.linear("v_b", n_heads * v_head_dim, kv_lora_rank, false, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * v_head_dim, bias,
              spec::Init::into_stream(scope.n_layers));
  declare_gate(list, {n_heads, n_heads, v_head_dim, scope.d_model},
               gate_of == LatentGateSource::input ? scope.d_model : query_width(scope));
  if (rope_norm) rope_norm.config->params_under(list, "rope_norm", child_scope(scope, "rope_norm"));
  if (sinks)
    list.add({"sinks",
              {n_heads},
              spec::Init::normal(0.02),
              spec::ParamKind::structural,
              {spec::Role::head}});
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
  if (select) select.config->params_under(list, "select", child_scope(scope, "select"));
}

std::vector<spec::StateDecl> LatentAttentionConfig::state(const spec::Scope& scope) const {
  return with_select_state(
      kept_for(pattern_config(),
               spec::packing({{"latent", spec::StateDecl::Kind::per_token, {1, entry()}}})),
      select, child_scope(scope, "select"));
}

std::string LatentAttentionConfig::not_recorded_reason() const {
  return temperature.not_recorded_reason();
}

double LatentAttentionConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  // absorbed: scores over the entry, weights over the latent
  const double of_key = 2.0 * static_cast<double>(n_heads * (entry() + kv_lora_rank));
  if (!select) return of_key * static_cast<double>(pattern_config().keys_met(context));
  return of_key * static_cast<double>(select.as<SelectConfig>().keys_met(context)) +
         select.config->extra_flops(child_scope(scope, "select"), context);
}

void LatentAttentionConfig::check_behind(const std::vector<spec::Placed>& before,
                                         const spec::Scope& scope) const {
  if (select) select.as<SelectConfig>().check_behind(before, scope);
}

double LatentAttentionConfig::score_scale() const {
  if (scale == LatentScale::value) return scale_value;
  const double rsqrt = 1 / std::sqrt(static_cast<double>(head_dim()));
  const YarnScalingConfig* yarn = yarn_of(position);
  if (scale == LatentScale::rsqrt_head_dim || yarn == nullptr || yarn->factor <= 1) return rsqrt;
  const double m = 0.1 * yarn->mscale_all_dim * std::log(yarn->factor) + 1;
  return rsqrt * m * m;
}

}  // namespace tessera::nn
