#include "tessera/model/model.h"

#include "tessera/nn/head/head_config.h"
#include "tessera/nn/residual/residual_config.h"
#include "tessera/ops/random.h"

namespace tessera::model {

Weights Weights::check(const ModelSpec& spec, std::map<std::string, WeightPtr> weights) {
  Weights out;
  for (const spec::ParamDecl& decl : parameters(spec)) {
    const auto found = weights.find(decl.name);
    if (found == weights.end())
      fail(ErrorKind::file, "weights", "tensor \"{}\" is missing; expected shape [{}]", decl.name,
           fmt::join(decl.shape, ", "));
    if (found->second->shape() != decl.shape)
      fail(ErrorKind::file, "weights", "tensor \"{}\" has shape [{}]; the spec wants [{}]",
           decl.name, fmt::join(found->second->shape(), ", "), fmt::join(decl.shape, ", "));
    out.index_[decl.name] = out.all_.size();
    out.all_.emplace_back(decl, found->second);
    weights.erase(found);
  }
  if (!weights.empty())
    fail(ErrorKind::file, "weights", "tensor \"{}\" is not part of this spec",
         weights.begin()->first);
  return out;
}

Weights Weights::initial(const ModelSpec& spec, uint64_t seed, at::ScalarType type) {
  std::map<std::string, WeightPtr> weights;
  const RandomKey key = RandomKey(seed).fold("init");
  for (const spec::ParamDecl& decl : parameters(spec))
    weights[decl.name] = std::make_shared<ops::Weight>(
        ops::Weight::dense(decl.name, ops::initial_values(decl, key, type).requires_grad_(true)));
  return check(spec, std::move(weights));
}

WeightPtr Weights::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : all_[found->second].second;
}

int64_t Weights::bytes() const {
  int64_t bytes = 0;
  for (const auto& [decl, weight] : all_) bytes += weight->bytes();
  return bytes;
}

Model::Model(ModelSpec spec, Weights weights)
    : spec_(std::move(spec)), weights_(std::move(weights)) {
  const nn::WeightSource source = [this](const std::string& name) { return weights_.find(name); };
  const nn::Builder root(source, "", spec_.scope(0));
  embed_ = nn::build_embed(spec_.embed, root.under("embed"));
  size_t state_index = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(spec_.layers.size()); ++i)
    build_layer(i, root.under(spec_.prefix(i), spec_.scope(i)), state_index);
  if (spec_.final_norm) final_norm_ = nn::build_norm(spec_.final_norm, root.under("final_norm"));
  if (spec_.head) head_ = nn::build_head(spec_.head, root.under("head"));
  if (spec_.pooler) pooler_ = nn::build_head(spec_.pooler, root.under("pooler"));
}

void Model::build_layer(int64_t layer, const nn::Builder& builder, size_t& state_index) {
  std::vector<Group> groups;
  for (const GroupSpec& group_spec : spec_.layers[static_cast<size_t>(layer)].groups) {
    Group group;
    group.residual = nn::build_residual(group_spec.residual, builder);
    const auto norm_names =
        dynamic_cast<const nn::ResidualConfig&>(*group_spec.residual.config).norms();
    for (const BranchSpec& branch_spec : group_spec.branches) {
      nn::Branch branch;
      branch.name = fmt::format("layers.{}.{}", layer, branch_spec.name);
      for (size_t n = 0; n < branch_spec.norms.size(); ++n)
        branch.norms.push_back(nn::build_norm(
            branch_spec.norms[n], builder.under(branch_spec.name + "_" + norm_names[n])));
      const nn::Builder here = builder.under(branch_spec.name);
      if (branch_spec.slot == Slot::ffn) {
        branch.run = [ffn = std::shared_ptr<nn::Ffn>(nn::build_ffn(branch_spec.part, here))](
                         const Tensor& x, nn::Context& context) {
          return ffn->forward(x, context);
        };
      } else {
        const bool has_state = !branch_spec.part.config->state(spec_.scope(layer)).empty();
        branch.run = [mixer = std::shared_ptr<nn::Mixer>(nn::build_mixer(branch_spec.part, here)),
                      has_state, index = state_index](const Tensor& x, nn::Context& context) {
          const auto call = context.shared.find("call");
          const Call c = call == context.shared.end() ? Call{} : std::any_cast<Call>(call->second);
          if (c.state == nullptr || !has_state)
            return nn::run_mixer(*mixer, x, context, nullptr, false);
          const nn::StateRows rows = c.state->branch(index, *context.batch);
          return nn::run_mixer(*mixer, x, context, &rows, c.pending);
        };
        if (has_state) ++state_index;
      }
      // intermediates are named by branch
      branch.run = [run = std::move(branch.run), name = branch.name, layer](const Tensor& x,
                                                                            nn::Context& context) {
        context.layer = layer;
        if (context.probe) context.probe(name + ".in", x);
        Tensor y = run(x, context);
        if (context.probe) context.probe(name + ".out", y);
        return y;
      };
      group.branches.push_back(std::move(branch));
    }
    groups.push_back(std::move(group));
  }
  layers_.push_back(std::move(groups));
}

Tensor Model::hidden(const nn::Batch& batch, const ForwardOptions& options) const {
  if (batch.n_tokens() == 0)
    fail(ErrorKind::input, "model", "the input is empty; expected at least one token");
  if (const int64_t limit = spec_.max_positions(); limit > 0 && batch.longest() > limit)
    fail(ErrorKind::input, "model", "{} tokens; this model has {} positions: shorten the input",
         batch.longest(), limit);
  if (options.state != nullptr) options.state->check(batch, options.pending);
  nn::Context context;
  context.batch = &batch;
  context.causal = spec_.causal();
  context.training = options.training;
  context.key = options.key;
  context.cancel = options.cancel;
  context.probe = options.probe;
  context.shared["call"] = Call{options.state, options.pending};

  Tensor x_ND;
  try {
    x_ND = stack(context);
  } catch (...) {
    if (options.state != nullptr) options.state->spoil(batch);
    throw;
  }
  if (options.state != nullptr)
    for (const nn::Segment& s : batch.segments)
      options.state->advance(s.row, s.length, options.pending);
  return x_ND;
}

Tensor Model::stack(nn::Context& context) const {
  Tensor x_ND = embed_->forward(context);
  if (context.probe) context.probe("embed", x_ND);
  for (const auto& layer : layers_) {
    if (context.cancel != nullptr) context.cancel->check("model");
    for (const Group& group : layer) x_ND = group.residual->forward(x_ND, group.branches, context);
  }
  if (final_norm_) x_ND = final_norm_->forward(x_ND);
  if (context.probe) context.probe("final", x_ND);
  return x_ND;
}

bool Model::has_head() const {
  return head_ && spec_.head.as<nn::HeadConfig>().of_vocabulary();
}

Tensor Model::pooled(const Tensor& hidden_ND, const nn::Batch& batch) const {
  if (!pooler_) fail(ErrorKind::usage, "model", "this model has no pooler; use its hidden states");
  std::vector<int64_t> first;
  for (const nn::Segment& s : batch.segments) {
    if (s.start > 0)
      fail(ErrorKind::input, "model",
           "row {} starts at position {}; a pooler reads the first token of whole documents", s.row,
           s.start);
    first.push_back(s.begin);
  }
  return pooler_->forward(
      hidden_ND.index_select(0, at::tensor(first, at::kLong).to(hidden_ND.device())));
}

Tensor Model::logits(const Tensor& rows_RD) const {
  if (!head_)
    fail(ErrorKind::usage, "model", "this model has no head, so no logits; use its hidden states");
  return head_->forward(rows_RD);
}

}  // namespace tessera::model
