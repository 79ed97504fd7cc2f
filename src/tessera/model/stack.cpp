#include "tessera/model/stack.h"

#include <algorithm>

#include "tessera/model/branches.h"
#include "tessera/nn/rerun.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::model {

Stack::Stack(const ModelSpec& spec, const nn::WeightSource& source) : spec_(spec) {
  const nn::Builder root(source, "", spec_.scope(0));
  embed_ = nn::build_embed(spec_.embed, root.under(spec_.under("embed")));
  embed_has_state_ = !spec_.embed.config->state(spec_.scope(0)).empty();
  size_t state_index = embed_has_state_ ? 1 : 0;  // in the order of state_layout
  for (int64_t i = 0; i < static_cast<int64_t>(spec_.layers.size()); ++i)
    build_layer(i, root.under(spec_.prefix(i), spec_.scope(i)), state_index);
  mark_runs();
  if (spec_.final_norm)
    final_norm_ =
        nn::build_norm(spec_.final_norm, root.under(spec_.under("final_norm"), spec_.scope_out()));
}

void Stack::mark_runs() {
  Group* before = nullptr;
  int64_t streams_before = 1;
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t g = 0; g < layers_[i].size(); ++g) {
      const int64_t streams =
          dynamic_cast<const nn::ResidualConfig&>(*spec_.layers[i].groups[g].residual.config)
              .streams();
      layers_[i][g].enters = streams != streams_before;
      if (before != nullptr) before->leaves = streams != streams_before && streams_before > 1;
      before = &layers_[i][g];
      streams_before = streams;
    }
  before->leaves = streams_before > 1;
}

void Stack::build_layer(int64_t layer, const nn::Builder& builder, size_t& state_index) {
  std::vector<Group> groups;
  for (const GroupSpec& group_spec : spec_.layers[static_cast<size_t>(layer)].groups) {
    Group group;
    group.residual =
        group_spec.aside ? build_aside() : nn::build_residual(group_spec.residual, builder);
    const auto norm_names = group_spec.norm_names();
    for (const BranchSpec& branch_spec : group_spec.branches) {
      nn::Branch branch;
      const auto weights = std::make_shared<std::vector<nn::WeightPtr>>();
      const nn::Builder noted = nn::noting(builder, weights);
      branch.name = spec_.under(fmt::format("layers.{}.{}", layer, branch_spec.name));
      for (size_t n = 0; n < branch_spec.norms.size(); ++n)
        branch.norms.push_back(
            branch_spec.norms[n]
                ? nn::build_norm(branch_spec.norms[n],
                                 norm_builder(spec_, layer, branch_spec, norm_names[n], noted))
                : nullptr);
      branch.read = reader_of(spec_, branch_spec);
      const nn::Builder here = part_builder(spec_, layer, branch_spec, noted);
      if (branch_spec.slot == Slot::ffn) {
        branch.run = [ffn = std::shared_ptr<nn::Ffn>(nn::build_ffn(branch_spec.part, here))](
                         const Tensor& x, nn::Context& context) {
          return ffn->forward(x, context);
        };
      } else {
        const bool has_state = !branch_spec.part.config->state(here.scope()).empty();
        branch.run = [mixer = std::shared_ptr<nn::Mixer>(nn::build_mixer(branch_spec.part, here)),
                      has_state, index = state_index](const Tensor& x, nn::Context& context) {
          const nn::Call& c = context.call;
          if (c.state == nullptr || !has_state) return nn::run_mixer(*mixer, x, context, nullptr);
          const nn::StateRows rows = c.state->branch(index, *context.batch);
          return nn::run_mixer(*mixer, x, context, &rows);
        };
        if (has_state) ++state_index;
      }
      branch.weights = *weights;
      // intermediates are named by branch
      const bool is_read = spec_.layers[static_cast<size_t>(layer)].reads(branch_spec.name);
      branch.run = [spec = &spec_, run = std::move(branch.run), name = branch.name, layer, is_read,
                    own = branch_spec.name](const Tensor& given, nn::Context& context) {
        context.layer = layer;
        const auto& replace = context.call.replace;
        const Tensor x = replace ? replace(name + ".in", given) : given;
        if (context.probe) context.probe(name + ".in", x);
        Tensor y = run(x, context);
        if (context.probe) context.probe(name + ".out", y);
        if (is_read) keep(context, *spec, own, y);
        return y;
      };
      group.branches.push_back(std::move(branch));
    }
    groups.push_back(std::move(group));
  }
  layers_.push_back(std::move(groups));
}

Tensor Stack::embedded(nn::Context& context) const {
  const nn::Call& call = context.call;
  if (call.state == nullptr || !embed_has_state_) return nn::run_embed(*embed_, context, nullptr);
  const nn::StateRows rows = call.state->branch(0, *context.batch);
  return nn::run_embed(*embed_, context, &rows);
}

Tensor Stack::forward(nn::Context& context) const {
  Tensor x = embedded(context);
  if (context.probe) context.probe(spec_.under("embed"), x);
  if (std::any_of(spec_.layers.begin(), spec_.layers.end(),
                  [](const LayerSpec& layer) { return layer.reads(kEmbedding); }))
    keep(context, spec_, kEmbedding, x);
  for (const auto& layer : layers_) {
    if (context.cancel != nullptr) context.cancel->check("model");
    for (const Group& group : layer) {
      if (group.enters) x = group.residual->enter(x, context);
      x = group.residual->forward(x, group.branches, context);
      if (group.leaves) x = group.residual->leave(x);
    }
  }
  if (final_norm_) x = final_norm_->forward(x);
  if (context.probe) context.probe(spec_.under("final"), x);
  return x;
}

}  // namespace tessera::model
