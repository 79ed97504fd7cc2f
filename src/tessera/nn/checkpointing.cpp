#include "tessera/nn/checkpointing.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <set>

namespace tessera::nn {

/// Choices in the order in which they are made. A region inside another makes them through it.
struct Choices {
  std::vector<Tensor> made;
  bool repeating = false;
  size_t next = 0;
  std::shared_ptr<Choices> outer;

  Tensor choose(const std::function<Tensor()>& make) {
    if (repeating) {
      require(next < made.size(), "rerun", "choice {} was not made in the first run", next);
      return made[next++];
    }
    made.push_back(outer ? outer->choose(make) : make());
    return made.back();
  }
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::shared_ptr<Choices> choices_of(const Context& context) {
  return context.recomputation ? context.recomputation->choices : nullptr;
}

/// Whether they hold the same tensors: what is at an address may be another batch by now.
bool same_tensors(const Batch& a, const Batch& b) {
  return a.ids_N.is_same(b.ids_N) && a.positions_N.is_same(b.positions_N);
}
bool same_tensors(const Encoded& a, const Encoded& b) {
  return a.x_SD.is_same(b.x_SD);
}

/// A copy of `value` that outlives the call, one for all its regions; a region that runs again
/// finds the copy itself in its context.
template <class T>
std::shared_ptr<const T> kept(const T* value, std::shared_ptr<const T>& copy, const T*& copy_of) {
  if (value == nullptr) return nullptr;
  if (copy.get() == value) return copy;
  if (copy_of != value || !same_tensors(*copy, *value)) {
    copy = std::make_shared<const T>(*value);
    copy_of = value;
  }
  return copy;
}

/// The context with choices of its own.
void choose_by(Context& context, std::shared_ptr<Choices> choices) {
  context.recomputation = std::make_shared<Recomputation>(*context.recomputation);
  context.recomputation->choices = std::move(choices);
}

/// Whether a run that began with `before` left another value under `name`.
bool is_written(const LayerValues& before, const std::string& name, const Tensor& value) {
  const Tensor* was = before.find(name);
  return was == nullptr || !was->is_same(value);
}

}  // namespace

Builder noting(const Builder& builder, std::shared_ptr<std::vector<WeightPtr>> list) {
  const WeightSource source = [builder, list = std::move(list)](const std::string& name) {
    WeightPtr weight = builder.absolute(name);
    if (weight) list->push_back(weight);
    return weight;
  };
  return {source, builder.prefix(), builder.scope()};
}

void require_first_derivative() {
  if (at::GradMode::is_enabled())
    fail(ErrorKind::usage, "rerun",
         "gradient checkpointing supports first derivatives only; second derivatives were "
         "requested");
}

Tensor chosen(Context& context, const std::function<Tensor()>& make) {
  const auto choices = choices_of(context);
  return choices ? choices->choose(make) : make();
}

/// What a run wrote into its context.
struct CheckpointedRegion::Written {
  bool loss = false;
  std::string name;
  Tensor value;
};

struct CheckpointedRegion::Run {
  Tensor y;
  std::vector<Written> written;
};

CheckpointedRegion::CheckpointedRegion(Body body,
                                       std::span<const WeightPtr> weights,
                                       const Tensor& x,
                                       Context& context)
    : body_(std::move(body)) {
  if (!context.recomputation) context.recomputation = std::make_shared<Recomputation>();
  Recomputation& common = *context.recomputation;
  batch_ = kept(context.batch, common.batch, common.batch_of);
  encoded_ = kept(context.encoded, common.encoded, common.encoded_of);
  frozen_ = context;
  frozen_.batch = batch_.get();
  frozen_.encoded = encoded_.get();
  frozen_.probe = {};
  frozen_.add_statistic = nullptr;
  frozen_.update = nullptr;
  frozen_.cancel = nullptr;
  frozen_.lasting = nullptr;

  std::set<const void*> seen;
  const auto add = [&](const Tensor& input) {
    if (input.defined() && input.requires_grad() && seen.insert(input.unsafeGetTensorImpl()).second)
      inputs_.push_back(input);
  };
  const std::function<void(const ops::Weight&)> add_weight = [&](const ops::Weight& weight) {
    if (const ops::Weight::Adapted* parts = weight.parts())
      for (const WeightPtr& part : parts->all()) add_weight(*part);
    else
      add(weight.dense_tensor());
  };
  for (const WeightPtr& weight : weights) add_weight(*weight);
  n_weights_ = inputs_.size();
  if (encoded_) add(encoded_->x_SD);
  for (const auto& [name, value] : frozen_.values.all()) add(value);

  Context first = frozen_;
  first.probe = context.probe;
  first.cancel = context.cancel;
  first.add_statistic = context.add_statistic;
  first.update = context.update;
  auto choices = std::make_shared<Choices>();
  choices->outer = choices_of(context);
  choose_by(first, choices);
  const Run ran = run(x.detach().requires_grad_(true), first);
  choices_ = std::move(choices->made);
  outputs_.push_back(ran.y.detach());
  for (const Written& w : ran.written) {
    written_.emplace_back(w.loss, w.name);
    outputs_.push_back(w.value.detach());
  }
  // what has no gradient is left for later layers as it is
  for (const auto& [name, value] : first.values.all())
    if (is_written(frozen_.values, name, value) && !value.requires_grad())
      context.values.put(name, value);
}

CheckpointedRegion::Run CheckpointedRegion::run(const Tensor& x, Context& context) const {
  const at::AutoGradMode record(true);
  const LayerValues before = context.values;
  Run out;
  if (context.add_loss)
    context.add_loss = [&out](const std::string& name, const Tensor& loss) {
      if (loss.requires_grad()) out.written.push_back({true, name, loss});
    };
  out.y = body_(x, context);
  for (const auto& [name, value] : context.values.all())
    if (is_written(before, name, value) && value.requires_grad())
      out.written.push_back({false, name, value});
  return out;
}

void CheckpointedRegion::publish(std::span<const Tensor> outputs, Context& context) const {
  for (size_t i = 0; i < written_.size(); ++i) {
    const auto& [loss, name] = written_[i];
    if (!loss)
      context.values.put(name, outputs[i + 1]);
    else if (context.add_loss)
      context.add_loss(name, outputs[i + 1]);
  }
}

CheckpointedRegion::Gradients CheckpointedRegion::again(const Tensor& x,
                                                        std::span<const Tensor> gradients) const {
  Context context = frozen_;
  auto choices = std::make_shared<Choices>();
  choices->made = choices_;
  choices->repeating = true;
  choose_by(context, choices);
  // What other parts made is cut off from them: the graph outside this region leads there, and may
  // lead to weights that are this region's as well.
  const Tensor leaf = x.detach().requires_grad_(true);
  variable_list wanted{leaf};
  for (size_t i = 0; i < inputs_.size(); ++i)
    wanted.push_back(i < n_weights_ ? inputs_[i] : inputs_[i].detach().requires_grad_(true));
  const auto cut_off = [&](const Tensor& made) {
    for (size_t i = n_weights_; i < inputs_.size(); ++i)
      if (inputs_[i].is_same(made)) return wanted[i + 1];
    return made;
  };
  Encoded encoded;
  if (encoded_) {
    encoded = *encoded_;
    encoded.x_SD = cut_off(encoded.x_SD);
    context.encoded = &encoded;
  }
  for (auto& [name, value] : context.values.all()) value = cut_off(value);
  const Run ran = run(leaf, context);
  require(ran.written.size() == written_.size(), "rerun",
          "a second run wrote {} values into its context; the first wrote {}", ran.written.size(),
          written_.size());

  variable_list outputs, given;
  const auto add = [&](const Tensor& output, const Tensor& gradient) {
    if (!output.requires_grad() || !gradient.defined()) return;
    outputs.push_back(output);
    given.push_back(gradient);
  };
  add(ran.y, gradients[0]);
  for (size_t i = 0; i < ran.written.size(); ++i) add(ran.written[i].value, gradients[i + 1]);
  variable_list found = outputs.empty()
                            ? variable_list(wanted.size())
                            : torch::autograd::grad(outputs, wanted, given, false, false, true);
  Gradients out;
  out.y = ran.y.detach();
  out.x = found[0].defined() ? found[0] : at::zeros_like(leaf);
  out.inputs.assign(found.begin() + 1, found.end());
  return out;
}

namespace {

struct Holder final : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<CheckpointedRegion> r) : region(std::move(r)) {}
  std::shared_ptr<CheckpointedRegion> region;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context,
                               const std::shared_ptr<CheckpointedRegion>& region,
                               at::TensorList inputs) {
    context->save_for_backward({inputs[0]});
    context->saved_data["region"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(region));
    return region->take_outputs();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative();
    const auto holder = context->saved_data["region"].toCapsule();
    const CheckpointedRegion& region = *static_cast<Holder*>(holder.get())->region;
    const CheckpointedRegion::Gradients g =
        region.again(context->get_saved_variables()[0], gradients);
    variable_list out{Tensor(), g.x};  // nothing for `region`
    out.insert(out.end(), g.inputs.begin(), g.inputs.end());
    return out;
  }
};

}  // namespace

Tensor recomputed(CheckpointedRegion::Body body,
                  std::span<const WeightPtr> weights,
                  const Tensor& x,
                  Context& context) {
  if (!at::GradMode::is_enabled()) return body(x, context);
  const auto region = std::make_shared<CheckpointedRegion>(std::move(body), weights, x, context);
  variable_list inputs{x};
  inputs.insert(inputs.end(), region->inputs().begin(), region->inputs().end());
  const variable_list outputs = Recomputed::apply(region, at::TensorList(inputs));
  region->publish(outputs, context);
  return outputs[0];
}

}  // namespace tessera::nn
