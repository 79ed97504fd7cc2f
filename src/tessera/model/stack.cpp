#include "tessera/model/stack.h"

#include <algorithm>

#include "tessera/model/branches.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/nn/residual/residual_config.h"
#include "tessera/nn/wide_output.h"

namespace tessera::model {

Stack::Stack(const ModelSpec& spec,
             const nn::WeightSource& source,
             const ops::ProductSettings& products)
    : spec_(spec), ids_before_(spec.ids_before()) {
  const nn::Builder root(source, "", spec_.scope(0));
  if (spec_.embed) {
    embed_ = nn::build_embed(spec_.embed, root.under(spec_.under("embed")));
    embed_has_state_ = !spec_.embed.config->state(spec_.scope(0)).empty();
  }
  size_t state_index = embed_has_state_ ? 1 : 0;  // in the order of state_layout
  std::vector<StepPlan::Layer> steps;
  for (int64_t i = 0; i < static_cast<int64_t>(spec_.layers.size()); ++i)
    steps.push_back(
        build_layer(i, root.under(spec_.prefix(i), spec_.scope(i)), products, state_index));
  steps_ = StepPlan(spec_.d_model, std::move(steps));
  if (spec_.final_norm)
    final_norm_ =
        nn::build_norm(spec_.final_norm, root.under(spec_.under("final_norm"), spec_.scope_out()));
}

namespace {

/// The decoding step of a branch with its norms.
struct OfferedSteps {
  nn::BranchSteps branch;
  StepPlan::Part part;
  bool whole = true;  // the step covers the whole branch
};

OfferedSteps offered_by(const nn::Branch& branch,
                        std::shared_ptr<const nn::PartStep> part,
                        std::optional<size_t> state) {
  OfferedSteps out{{{}, branch.gain, branch.sum_gain}, {std::move(part), state}};
  out.whole = out.part.step != nullptr && branch.read == nullptr;
  for (const std::unique_ptr<nn::Norm>& norm : branch.norms) {
    out.branch.norms.push_back(norm ? norm->step() : nullptr);
    out.whole = out.whole && (norm == nullptr || out.branch.norms.back() != nullptr);
  }
  return out;
}

/// Adds the step of a group to those of its layer; false if it has none.
bool add_steps(const nn::Residual& residual,
               const std::vector<OfferedSteps>& offered,
               int64_t width,
               StepPlan::Layer& layer) {
  StepPlan::Group group;
  std::vector<nn::BranchSteps> branches;
  for (const OfferedSteps& one : offered) {
    if (!one.whole) return false;
    branches.push_back(one.branch);
    group.parts.push_back(one.part);
  }
  group.residual = residual.step(branches, width);
  layer.push_back(group);
  return group.residual != nullptr;
}

}  // namespace

StepPlan::Layer Stack::build_layer(int64_t layer,
                                   const nn::Builder& plain,
                                   const ops::ProductSettings& products,
                                   size_t& state_index) {
  Layer built;
  StepPlan::Layer steps;
  bool all_steps = !spec_.layers[static_cast<size_t>(layer)].depth;
  const auto all_weights = std::make_shared<std::vector<nn::WeightPtr>>();
  const nn::Builder builder = nn::noting(plain, all_weights);
  std::vector<Group>& groups = built.groups;
  const size_t first_state = state_index;
  for (const GroupSpec& group_spec : spec_.layers[static_cast<size_t>(layer)].groups) {
    Group group;
    const GroupSpec::Run run = spec_.run_of(group_spec);
    group.enters = run.begins;
    group.leaves = run.ends;
    const bool recomputes = !group_spec.aside && group_spec.residual_config().recomputes();
    built.recomputes = built.recomputes || recomputes;
    const auto norm_names = group_spec.norm_names();
    std::vector<OfferedSteps> offered;
    for (const BranchSpec& branch_spec : group_spec.branches) {
      nn::Branch branch;
      const bool is_read = spec_.layers[static_cast<size_t>(layer)].reads(branch_spec.name);
      const auto weights = std::make_shared<std::vector<nn::WeightPtr>>();
      const nn::Builder noted = nn::noting(builder, weights);
      branch.name = spec_.under(fmt::format("layers.{}.{}", layer, branch_spec.name));
      for (size_t n = 0; n < branch_spec.norms.size(); ++n)
        branch.norms.push_back(
            branch_spec.norms[n]
                ? nn::build_norm(branch_spec.norms[n],
                                 norm_builder(spec_, layer, branch_spec, norm_names[n], noted))
                : nullptr);
      if (!group_spec.aside) {
        const nn::Builder residual = residual_builder(spec_, layer, branch_spec, noted);
        branch.gain = residual.optional("gain");
        branch.sum_gain = residual.optional("sum_gain");
      }
      branch.read = reader_of(spec_, branch_spec);
      const nn::Builder here = part_builder(spec_, layer, branch_spec, noted);
      const bool is_wide =
          dynamic_cast<const nn::WideOutput*>(branch_spec.part.config.get()) != nullptr;
      const int64_t width = is_wide ? here.scope().input_width() : spec_.d_model;
      if (branch_spec.slot == Slot::ffn) {
        const std::shared_ptr<nn::Ffn> ffn = nn::build_ffn(branch_spec.part, here);
        offered.push_back(offered_by(branch, ffn->step(products), std::nullopt));
        branch.run = [ffn, width, part = offered.back().part](const Tensor& x,
                                                              nn::Context& context) {
          const Tensor y = StepPlan::run_part(part, x, width, context);
          return y.defined() ? y : ffn->forward(x, context);
        };
      } else {
        const bool has_state = !branch_spec.part.config->state(here.scope()).empty();
        const std::shared_ptr<nn::Mixer> mixer = nn::build_mixer(branch_spec.part, here);
        offered.push_back(offered_by(branch, mixer->step(products),
                                     has_state ? std::optional(state_index) : std::nullopt));
        branch.run = [mixer, has_state, width, part = offered.back().part, index = state_index](
                         const Tensor& x, nn::Context& context) {
          if (const Tensor y = StepPlan::run_part(part, x, width, context); y.defined()) return y;
          const nn::Call& c = context.call;
          if (c.state == nullptr || !has_state) return nn::run_mixer(*mixer, x, context, nullptr);
          const nn::StateRows rows = c.state->branch(index, *context.batch);
          return nn::run_mixer(*mixer, x, context, &rows);
        };
        if (has_state) ++state_index;
      }
      branch.weights = *weights;
      if (!recomputes) {
        using Of = nn::RecomputeOf;
        branch.run = [of = branch_spec.slot == Slot::ffn ? Of::ffns : Of::mixers, layer,
                      weights = branch.weights,
                      run = std::move(branch.run)](const Tensor& x, nn::Context& context) {
          if (!context.recompute.acts(of, layer) || context.call.runs_once())
            return run(x, context);
          return nn::recomputed(run, weights, x, context);
        };
      }
      offered.back().whole = offered.back().whole && !is_read;
      // intermediates are named by branch
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
    group.residual =
        group_spec.aside
            ? build_aside()
            : nn::build_residual(group_spec.residual,
                                 residual_builder(spec_, layer, group_spec.branches[0], builder));
    all_steps = all_steps && add_steps(*group.residual, offered, spec_.d_model, steps);
    groups.push_back(std::move(group));
  }
  if (state_index > first_state) built.state = static_cast<int64_t>(first_state);
  if (const AnyPart& depth = spec_.layers[static_cast<size_t>(layer)].depth) {
    built.depth = nn::build_depth(depth, builder.under("depth"));
    const ModelSpec::Loop loop = spec_.loop_of(layer);
    built.begins_loop = loop.begins;
    built.ends_loop = loop.ends;
    built.depth_name = spec_.under(fmt::format("layers.{}.depth", layer));
  }
  built.weights = *all_weights;
  layers_.push_back(std::move(built));
  return all_steps ? steps : StepPlan::Layer();
}

Tensor Stack::embedded(nn::Context& context) const {
  const nn::Call& call = context.call;
  if (call.state == nullptr || !embed_has_state_) return nn::run_embed(*embed_, context, nullptr);
  const nn::StateRows rows = call.state->branch(0, *context.batch);
  return nn::run_embed(*embed_, context, &rows);
}

nn::Stream Stack::run(const Layer& layer, nn::Stream stream, nn::Context& context) const {
  for (const Group& group : layer.groups) {
    if (group.enters) stream = group.residual->enter(stream.front(), context);
    stream = group.residual->forward(std::move(stream), group.branches, context);
    if (group.leaves) stream = {group.residual->leave(stream, context)};
  }
  return stream;
}

nn::Stream Stack::compute(size_t index, nn::Stream stream, nn::Context& context) const {
  const Layer& layer = layers_[index];
  if (!layer.depth) return run(layer, std::move(stream), context);
  const nn::DepthLayer some{
      .run = [&](const Tensor& x, nn::Context& here) { return run(layer, {x}, here).front(); },
      .seen =
          [&](const nn::Context& here, const nn::Segment& segment) {
            nn::BranchStates* states = here.call.state;
            if (states == nullptr || layer.state < 0) return segment.start;
            nn::Batch one;
            one.segments = {segment};
            return states->branch(static_cast<size_t>(layer.state), one).front()->length();
          },
      .first = layer.begins_loop,
      .last = layer.ends_loop};
  const auto& replace = context.call.replace;
  const Tensor given = replace ? replace(layer.depth_name + ".in", stream.front()) : stream.front();
  if (context.probe) context.probe(layer.depth_name + ".in", given);
  stream = {layer.depth->forward(given, some, context)};
  if (context.probe) context.probe(layer.depth_name + ".out", stream.front());
  return stream;
}

nn::Stream Stack::recomputed(size_t index, const nn::Stream& stream, nn::Context& context) const {
  // parallel streams enter and leave the region as one tensor
  const auto joined = [](const nn::Stream& list) {
    return list.size() == 1 ? list.front() : at::stack(list);
  };
  const auto apart = [](const Tensor& x, size_t n) { return n == 1 ? nn::Stream{x} : x.unbind(0); };
  const auto n_out = std::make_shared<size_t>(0);
  const Tensor y = nn::recomputed(
      [this, index, apart, joined, n_in = stream.size(), n_out](const Tensor& x,
                                                                nn::Context& inner) {
        const nn::Stream out = compute(index, apart(x, n_in), inner);
        *n_out = out.size();
        return joined(out);
      },
      layers_[index].weights, joined(stream), context);
  return apart(y, *n_out);
}

Tensor Stack::forward(const Tensor& x_ND, nn::Context& context, int64_t layers) const {
  const size_t n = layers > 0 ? static_cast<size_t>(layers) : layers_.size();
  Tensor x = x_ND;
  if (context.probe) context.probe(spec_.under("embed"), x);
  if (std::any_of(spec_.layers.begin(), spec_.layers.end(),
                  [](const LayerSpec& layer) { return layer.reads(kEmbedding); }))
    keep(context, spec_, kEmbedding, x);
  nn::Stream stream{x};
  for (size_t i = 0; i < n; ++i) {
    if (context.cancel != nullptr) context.cancel->check("model");
    // only residuals without steps have parallel streams
    if (stream.size() == 1) i += steps_.run(stream.front(), context, i, n);
    if (i == n) break;
    const bool again = context.recompute.acts(nn::RecomputeOf::layers, static_cast<int64_t>(i)) &&
                       !layers_[i].recomputes && !context.call.runs_once() &&
                       at::GradMode::is_enabled();
    stream = again ? recomputed(i, stream, context) : compute(i, std::move(stream), context);
    if (context.probe && stream.size() == 1)
      context.probe(spec_.under(fmt::format("layers.{}.out", i)), stream.front());
  }
  context.keys.end();
  x = normed(stream.front(), context);
  if (context.probe) context.probe(spec_.under("final"), x);
  return x;
}

}  // namespace tessera::model
