#include "tessera/model/plan.h"

#include "tessera/nn/head/head_config.h"

namespace tessera::model {

namespace {

/// A shared layer is stored once and computed at every invocation.
double layer_flops(const ModelSpec& spec, int64_t context) {
  double flops = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i)
    for (const GroupSpec& group : spec.layers[static_cast<size_t>(i)].groups)
      for (const BranchSpec& branch : group.branches) {
        spec::ParamList list;
        branch.part.config->params(list, spec.scope(i));
        for (const spec::ParamDecl& decl : list.all())
          if (decl.kind == spec::ParamKind::matrix)
            flops += 2.0 * static_cast<double>(decl.elements());
        flops += branch.part.config->extra_flops(spec.scope(i), context);
      }
  return flops;
}

}  // namespace

Plan make_plan(const ModelSpec& spec, int64_t context, int64_t source, spec::KvType kv) {
  if (source < 0) source = spec.encoder ? context : 0;
  Plan plan;
  plan.context = context;
  for (const spec::ParamDecl& decl : parameters(spec)) {
    plan.parameters += decl.elements();
    if (decl.kind == spec::ParamKind::matrix) plan.matrix_parameters += decl.elements();
  }
  plan.active_parameters = plan.parameters;
  // a tied head multiplies by the token embedding
  const auto* head = dynamic_cast<const nn::HeadConfig*>(spec.head.config.get());
  if (head != nullptr && head->tied())
    plan.matrix_parameters += spec.vocab * head->table_width(spec.scope_out());

  double flops =
      head == nullptr
          ? 0
          : 2.0 * static_cast<double>(head->outputs(spec.scope_out()) * spec.width_out());
  flops += layer_flops(spec, context);
  if (spec.encoder) flops += layer_flops(*spec.encoder, source);
  plan.flops_per_token = flops;

  for (const BranchState& branch : state_layout(spec, kv)) {
    plan.state_bytes += spec::state_bytes(branch.tensors, context, source);
    for (const spec::StateDecl& decl : branch.tensors) {
      using Kind = spec::StateDecl::Kind;
      if (decl.kind == Kind::per_token && decl.keep == 0)
        plan.state_bytes_per_token += decl.bytes_per_entry() / decl.every;
      else if (decl.kind == Kind::per_source)
        plan.state_bytes_fixed += decl.bytes_per_entry() * source;
      else
        plan.state_bytes_fixed +=
            decl.bytes_per_entry() * std::max<int64_t>(decl.first + decl.keep, 1);
    }
  }
  return plan;
}

Json to_json(const Plan& plan) {
  return {{"parameters", plan.parameters},
          {"active_parameters", plan.active_parameters},
          {"matrix_parameters", plan.matrix_parameters},
          {"flops_per_token", plan.flops_per_token},
          {"context", plan.context},
          {"state_bytes_per_token", plan.state_bytes_per_token},
          {"state_bytes_fixed", plan.state_bytes_fixed},
          {"state_bytes", plan.state_bytes}};
}

}  // namespace tessera::model
