#include "tessera/nn/rerun.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <set>

#include "tessera/nn/losses.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kChoices = "choices";

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

std::shared_ptr<Choices> choices_of(const Context& context) {
  const auto found = context.shared.find(kChoices);
  return found == context.shared.end() ? nullptr
                                       : std::any_cast<std::shared_ptr<Choices>>(found->second);
}

/// A copy that outlives the call, one for all its regions.
template <class T>
std::shared_ptr<const T> kept(const char* name, const T* value, Context& context) {
  if (value == nullptr) return nullptr;
  using Kept = std::pair<const T*, std::shared_ptr<const T>>;
  auto& cell = context.shared[name];
  const auto* known = std::any_cast<Kept>(&cell);
  if (known == nullptr || known->first != value) {
    // a region that runs again finds the copy itself in its context
    if (known != nullptr && known->second.get() == value) return known->second;
    cell = Kept{value, std::make_shared<const T>(*value)};
  }
  return std::any_cast<const Kept&>(cell).second;
}

using Shared = decltype(Context::shared);

/// Whether a run that began with `before` shares another value under `name`.
bool is_written(const Shared& before, const std::string& name, const std::any& value) {
  const auto found = before.find(name);
  if (found == before.end()) return true;
  const auto *was = std::any_cast<Tensor>(&found->second), *is = std::any_cast<Tensor>(&value);
  return was != nullptr && is != nullptr && !was->is_same(*is);
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
         "gradients of gradients are asked for; what is computed again in the backward pass has "
         "first derivatives only");
}

Tensor chosen(Context& context, const std::function<Tensor()>& make) {
  const auto choices = choices_of(context);
  return choices ? choices->choose(make) : make();
}

/// What a run wrote into its context.
struct Region::Written {
  bool loss = false;
  std::string name;
  Tensor value;
};

struct Region::Run {
  Tensor y;
  std::vector<Written> written;
};

Region::Region(Body body, std::span<const WeightPtr> weights, const Tensor& x, Context& context)
    : body_(std::move(body)),
      batch_(kept("rerun.batch", context.batch, context)),
      encoded_(kept("rerun.encoded", context.encoded, context)) {
  frozen_ = context;
  frozen_.batch = batch_.get();
  frozen_.encoded = encoded_.get();
  frozen_.probe = nullptr;
  frozen_.cancel = nullptr;
  frozen_.lasting = nullptr;

  std::set<const void*> seen;
  const auto add = [&](const Tensor& input) {
    if (input.defined() && input.requires_grad() && seen.insert(input.unsafeGetTensorImpl()).second)
      inputs_.push_back(input);
  };
  for (const WeightPtr& weight : weights) add(weight->dense_tensor());
  n_weights_ = inputs_.size();
  if (encoded_) add(encoded_->x_SD);
  for (const auto& [name, value] : frozen_.shared)
    if (const auto* tensor = std::any_cast<Tensor>(&value)) add(*tensor);

  Context first = frozen_;
  first.probe = context.probe;
  first.cancel = context.cancel;
  auto choices = std::make_shared<Choices>();
  choices->outer = choices_of(context);
  first.shared[kChoices] = choices;
  const Run ran = run(x.detach().requires_grad_(true), first);
  choices_ = std::move(choices->made);
  outputs_.push_back(ran.y.detach());
  for (const Written& w : ran.written) {
    written_.emplace_back(w.loss, w.name);
    outputs_.push_back(w.value.detach());
  }
  // what has no gradient is shared as it is
  for (const auto& [name, value] : first.shared) {
    if (!is_written(frozen_.shared, name, value)) continue;
    const auto* tensor = std::any_cast<Tensor>(&value);
    if (tensor != nullptr ? !tensor->requires_grad()
                          : std::any_cast<ops::RotaryTable>(&value) != nullptr)
      context.shared[name] = value;
  }
}

Region::Run Region::run(const Tensor& x, Context& context) const {
  const at::AutoGradMode record(true);
  const Shared before = context.shared;
  Run out;
  if (loss_sink(context))
    set_loss_sink(context, [&out](const std::string& name, const Tensor& loss) {
      if (loss.requires_grad()) out.written.push_back({true, name, loss});
    });
  out.y = body_(x, context);
  for (const auto& [name, value] : context.shared) {
    if (!is_written(before, name, value)) continue;
    const auto* tensor = std::any_cast<Tensor>(&value);
    if (tensor != nullptr && tensor->requires_grad()) out.written.push_back({false, name, *tensor});
  }
  return out;
}

void Region::publish(std::span<const Tensor> outputs, Context& context) const {
  const LossSink sink = loss_sink(context);
  for (size_t i = 0; i < written_.size(); ++i) {
    const auto& [loss, name] = written_[i];
    if (!loss)
      context.shared[name] = outputs[i + 1];
    else if (sink)
      sink(name, outputs[i + 1]);
  }
}

Region::Gradients Region::again(const Tensor& x, std::span<const Tensor> gradients) const {
  Context context = frozen_;
  auto choices = std::make_shared<Choices>();
  choices->made = choices_;
  choices->repeating = true;
  context.shared[kChoices] = choices;
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
  for (auto& [name, value] : context.shared)
    if (const auto* made = std::any_cast<Tensor>(&value)) value = Tensor(cut_off(*made));
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
  explicit Holder(std::shared_ptr<Region> r) : region(std::move(r)) {}
  std::shared_ptr<Region> region;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context,
                               const std::shared_ptr<Region>& region,
                               at::TensorList inputs) {
    context->save_for_backward({inputs[0]});
    context->saved_data["region"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(region));
    return region->take_outputs();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative();
    const auto holder = context->saved_data["region"].toCapsule();
    const Region& region = *static_cast<Holder*>(holder.get())->region;
    const Region::Gradients g = region.again(context->get_saved_variables()[0], gradients);
    variable_list out{Tensor(), g.x};  // nothing for `region`
    out.insert(out.end(), g.inputs.begin(), g.inputs.end());
    return out;
  }
};

}  // namespace

Tensor recomputed(Region::Body body,
                  std::span<const WeightPtr> weights,
                  const Tensor& x,
                  Context& context) {
  if (!at::GradMode::is_enabled()) return body(x, context);
  const auto region = std::make_shared<Region>(std::move(body), weights, x, context);
  variable_list inputs{x};
  inputs.insert(inputs.end(), region->inputs().begin(), region->inputs().end());
  const variable_list outputs = Recomputed::apply(region, at::TensorList(inputs));
  region->publish(outputs, context);
  return outputs[0];
}

}  // namespace tessera::nn
