#include "tessera/model/plan.h"

#include <algorithm>
#include <cmath>

#include "tessera/model/kv_quantization.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::model {

namespace {

/// FLOPs of products with the matrices of a list, for one token.
double products(const spec::ParamList& list) {
  double flops = 0;
  for (const spec::ParamDecl& decl : list.all())
    if (decl.kind == spec::ParamKind::matrix)
      flops += 2.0 * decl.share * static_cast<double>(decl.elements());
  return flops;
}

double products(const spec::AnyPart& part, const spec::Scope& scope) {
  spec::ParamList list;
  part.config->params(list, scope);
  return products(list);
}

/// What a residual multiplies with for one of its branches.
double residual_products(const GroupSpec& group, const BranchSpec& branch, const spec::Scope& scope) {
  spec::ParamList list;
  if (&branch == &group.branches.front()) group.residual_config().group_params(list, scope);
  return products(list) + products(group.residual, scope);
}

/// A shared layer is stored once and computed at every invocation.
double layer_flops(const ModelSpec& spec, int64_t context) {
  double flops = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(spec.layers.size()); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (layer.depth) flops += products(layer.depth, spec.scope(i));
    for (const GroupSpec& group : layer.groups)
      for (const BranchSpec& branch : group.branches)
        flops += branch_flops(spec, i, branch, context) +
                 layer.share_of_tokens() *
                     residual_products(group, branch, spec.residual_scope(i, branch));
  }
  return flops;
}

/// Tokens of `length` that a branch is expected to see, and the bytes that select them.
int64_t seen_by(const BranchState& branch, int64_t length) {
  return branch.selective
             ? static_cast<int64_t>(std::ceil(branch.share * static_cast<double>(length)))
             : length;
}
int64_t places_bytes(const BranchState& branch, int64_t length) {
  return branch.selective ? seen_by(branch, length) * static_cast<int64_t>(sizeof(int64_t)) : 0;
}

/// The state of a row; empty if the model cannot continue from a state.
std::vector<BranchState> held(const ModelSpec& spec, spec::KvType kv) {
  check_kv_type(spec, kv);
  return spec.no_state_reason().empty() ? state_layout(spec, kv) : std::vector<BranchState>();
}

}  // namespace

double branch_flops(const ModelSpec& spec,
                    int64_t layer,
                    const BranchSpec& branch,
                    int64_t context) {
  const double share = spec.layers[static_cast<size_t>(layer)].share_of_tokens();
  const auto seen = static_cast<int64_t>(std::ceil(share * static_cast<double>(context)));
  spec::ParamList list;
  const spec::Scope scope = spec.scope(layer, branch);
  branch.part.config->params(list, scope);
  list.append(adapter_parameters(spec, layer, branch));
  return share * (products(list) + branch.part.config->extra_flops(scope, seen));
}

int64_t usual_context(const ModelSpec& spec) {
  int64_t tokens = kUsualContext;
  for (const ModelSpec* one : {&spec, static_cast<const ModelSpec*>(spec.encoder.get())})
    if (const int64_t limit = one == nullptr ? 0 : one->longest_sequence(); limit > 0)
      tokens = std::min(tokens, limit);
  return tokens;
}

int64_t feature_tokens(const ModelSpec& stack) {
  const auto* features = dynamic_cast<const nn::FeatureEmbedConfig*>(stack.embed.config.get());
  if (features == nullptr) return 0;
  constexpr int64_t kMany = 1'000'000;
  const std::vector<int64_t> smallest = features->shape_of(1);
  if (features->shape_of(kMany) == smallest) return features->tokens(smallest);
  return stack.longest_sequence();
}

Plan make_plan(const ModelSpec& spec, int64_t context, int64_t source, spec::KvType kv) {
  if (source < 0) source = spec.encoder ? context : 0;
  Plan plan;
  plan.context = context;
  double active = 0;
  for (const spec::ParamDecl& decl : parameters(spec)) {
    plan.parameters += decl.elements();
    active += decl.share * static_cast<double>(decl.elements());
    if (decl.kind == spec::ParamKind::matrix) plan.matrix_parameters += decl.elements();
  }
  plan.active_parameters = static_cast<int64_t>(std::llround(active));
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

  for (const BranchState& branch : held(spec, kv)) {
    plan.state_bytes += spec::state_bytes(branch.tensors, seen_by(branch, context), source) +
                        places_bytes(branch, context);
    for (const spec::StateDecl& decl : branch.tensors) {
      using Kind = spec::StateDecl::Kind;
      if (decl.kind == Kind::per_token && decl.keep == 0)
        plan.state_bytes_per_token += static_cast<int64_t>(
            branch.share * static_cast<double>(decl.bytes_per_entry() / decl.every));
      else if (decl.kind == Kind::per_source)
        plan.state_bytes_fixed += decl.bytes_per_entry() * source;
      else
        plan.state_bytes_fixed +=
            decl.bytes_per_entry() * std::max<int64_t>(decl.first + decl.keep, 1);
    }
  }
  return plan;
}

void add_snapshots(Plan& plan, const ModelSpec& spec, int64_t every, spec::KvType kv) {
  const std::vector<BranchState> layout = held(spec, kv);
  const auto bytes_at = [&](int64_t length) {
    int64_t bytes = spec.width_out() * storage_bytes(DType::f32, 1);  // the last hidden state
    for (const BranchState& branch : layout)
      bytes += spec::state_bytes(branch.tensors, seen_by(branch, length),
                                 spec.encoder ? plan.context : 0) +
               places_bytes(branch, length);
    return bytes;
  };
  const bool cuts = std::all_of(layout.begin(), layout.end(), [](const BranchState& branch) {
    return std::all_of(branch.tensors.begin(), branch.tensors.end(), [](const auto& decl) {
      return decl.kind != spec::StateDecl::Kind::fixed && decl.keep == 0;
    });
  });
  plan.snapshot_every = every;
  plan.snapshots = 1;
  plan.snapshot_bytes = bytes_at(plan.context);
  for (int64_t at = every; !cuts && at < plan.context; at += every) {
    ++plan.snapshots;
    plan.snapshot_bytes += bytes_at(at);
  }
}

Json to_json(const Plan& plan) {
  Json json = {{"parameters", plan.parameters},
               {"active_parameters", plan.active_parameters},
               {"matrix_parameters", plan.matrix_parameters},
               {"flops_per_token", plan.flops_per_token},
               {"context", plan.context},
               {"state_bytes_per_token", plan.state_bytes_per_token},
               {"state_bytes_fixed", plan.state_bytes_fixed},
               {"state_bytes", plan.state_bytes}};
  if (plan.snapshot_every > 0) {
    json["snapshots"] = plan.snapshots;
    json["snapshot_bytes"] = plan.snapshot_bytes;
  }
  return json;
}

}  // namespace tessera::model
