#include "tessera/train/loop/parameters.h"

#include <algorithm>
#include <memory>

#include <ATen/ATen.h>

namespace tessera::train {
namespace {

bool matches_any(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(name, pattern); });
}

/// Index of the first rule that matches a parameter; their number if none does.
size_t rule_of(const std::string& name, const std::vector<GroupRecipe>& rules) {
  size_t i = 0;
  while (i < rules.size() && !matches_any(name, rules[i].match)) ++i;
  return i;
}

}  // namespace

bool matches(std::string_view name, std::string_view pattern) {
  // greedy, with backtracking to the last star
  size_t n = 0, p = 0, star = std::string_view::npos, after = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++after;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<std::pair<spec::ParamDecl, Tensor>> parameters_of(const model::WeightAdapter& adapter) {
  std::vector<std::pair<spec::ParamDecl, Tensor>> out;
  for (const model::OverlayPart& part : model::kOverlayParts) {
    const model::WeightPtr& weight = adapter.*part.part;
    if (weight == nullptr) continue;
    spec::ParamDecl decl{adapter.weight + "." + part.name, weight->shape(), {}};
    const bool product =
        part.part == &model::WeightAdapter::a || part.part == &model::WeightAdapter::b;
    if (!product) decl.decay = spec::Decay::no;
    out.emplace_back(std::move(decl), weight->dense_tensor());
  }
  return out;
}

ParameterSet::ParameterSet(const model::Model& model,
                           const OptimizerRecipe& recipe,
                           const std::vector<model::WeightAdapter>& adapters,
                           const AuxiliaryParameters& auxiliary) {
  std::vector<std::pair<spec::ParamDecl, Tensor>> all;
  const auto derived = [&](const std::string& name) {
    return std::find(auxiliary.derived.begin(), auxiliary.derived.end(), name) !=
           auxiliary.derived.end();
  };
  // all that is trained of a model with adapters
  const auto frozen = [&](const std::string& name) {
    return !adapters.empty() &&
           std::none_of(adapters.begin(), adapters.end(), [&](const model::WeightAdapter& adapter) {
             return adapter.weight == name && adapter.whole != nullptr;
           });
  };
  for (const auto& [decl, weight] : model.weights().all())
    if (!derived(decl.name))
      all.emplace_back(decl, frozen(decl.name) ? Tensor() : weight->dense_tensor());
  for (const model::WeightAdapter& adapter : adapters)
    for (auto& parameter : parameters_of(adapter)) all.push_back(std::move(parameter));
  for (const ParameterBeside& parameter : auxiliary.parameters)
    all.emplace_back(parameter.decl, parameter.tensor);
  if (auxiliary.companion.model != nullptr)
    for (const auto& [decl, weight] : auxiliary.companion.model->weights().all()) {
      if (model.weights().find(decl.name) == weight) continue;
      all.emplace_back(decl, weight->dense_tensor());
      all.back().first.name = auxiliary.companion.name + "." + decl.name;
    }
  std::vector<bool> used(recipe.groups.size(), false);
  for (auto& [decl, tensor] : all) {
    const size_t rule = rule_of(decl.name, recipe.groups);
    const GroupRecipe* how = rule < recipe.groups.size() ? &recipe.groups[rule] : nullptr;
    if (how != nullptr) used[rule] = true;
    const bool trainable = decl.trainable && tensor.defined() && (how == nullptr || !how->frozen);
    require(!trainable || tensor.scalar_type() == at::kFloat, "parameters",
            "{} is to be trained, but not of float32", decl.name);
    if (tensor.defined()) tensor.requires_grad_(trainable);
    if (!trainable) {
      frozen_.push_back(decl.name);
      if (decl.rule && tensor.defined() && (how == nullptr || !how->frozen)) {
        require(tensor.scalar_type() == at::kFloat, "parameters",
                "{} follows a rule, but not in float32", decl.name);
        ruled_.push_back({decl, std::move(tensor), 0});
      }
      continue;
    }
    ParameterGroup wanted;
    wanted.name = decl.decays() ? "decayed" : "undecayed";
    double decay = recipe.weight_decay;
    if (how != nullptr) {
      wanted.name = fmt::format("{}.{}", rule, wanted.name);
      wanted.lr_factor = how->lr_factor;
      decay = how->weight_decay.value_or(decay);
      wanted.optimizer = how->optimizer;
      wanted.rule = rule;
    }
    if (decl.lr_factor != 1) {
      wanted.name += fmt::format(" at {:.6g}", decl.lr_factor);
      wanted.lr_factor *= decl.lr_factor;
      decay /= decl.lr_factor;  // weight decay per step does not depend on the width
    }
    wanted.weight_decay = decl.decays() ? decay : 0;
    trained_.push_back({decl, std::move(tensor), group(std::move(wanted))});
  }
  for (const Entry& entry : trained_)
    require(entry.tensor.device() == device(), "parameters", "{} is on {}; expected {}",
            entry.decl.name, entry.tensor.device().str(), device().str());
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      fail(ErrorKind::spec, fmt::format("optimizer.groups[{}].match", i),
           "\"{}\" matches no parameter of this model that an earlier group has left",
           fmt::join(recipe.groups[i].match, "\", \""));
  if (trained_.empty())
    fail(ErrorKind::spec, "optimizer.groups", "all {} parameters are frozen; expected one to train",
         frozen_.size());
}

size_t ParameterSet::group(ParameterGroup wanted) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const ParameterGroup& group) {
    return group.name == wanted.name;
  });
  if (found != groups_.end()) return static_cast<size_t>(found - groups_.begin());
  groups_.push_back(std::move(wanted));
  return groups_.size() - 1;
}

void ParameterSet::clear_gradients() const {
  for (const Entry& entry : trained_) Tensor(entry.tensor).mutable_grad() = Tensor();
}

void ParameterSet::divide_gradients(double by) const {
  const at::NoGradGuard no_graph;
  for (const Entry& entry : trained_)
    if (Tensor gradient = entry.tensor.grad(); gradient.defined()) gradient.div_(by);
}

void ParameterSet::follow_rules(const std::map<std::string, Tensor>& counts) const {
  for (const Entry& entry : ruled_) {
    const auto found = counts.find(entry.decl.rule.statistic);
    if (found == counts.end()) continue;
    const Tensor sums = found->second.to(at::kCPU, at::kDouble).contiguous();
    const spec::UpdateRule& rule = entry.decl.rule;
    const int64_t expected = rule.n_counts > 0 ? rule.n_counts : entry.decl.elements();
    require(sums.numel() == expected, "train", "{} counts of \"{}\" for {}; expected {}",
            sums.numel(), rule.statistic, entry.decl.name, expected);
    const Tensor values = entry.tensor.detach().cpu();  // a copy if they are on another device
    rule.apply(
        {static_cast<float*>(values.mutable_data_ptr()), static_cast<size_t>(values.numel())},
        {sums.const_data_ptr<double>(), static_cast<size_t>(sums.numel())});
    if (!entry.tensor.is_cpu()) entry.tensor.detach().copy_(values);
  }
}

namespace {

Gradient on_host(const Tensor& values) {
  if (!values.defined()) return {};
  const auto owner = std::make_shared<const Tensor>(values.detach().cpu().contiguous());
  return {owner->const_data_ptr<float>(), owner->numel(), owner};
}

}  // namespace

std::vector<Gradient> ParameterSet::host_gradients() const {
  std::vector<Gradient> out;
  for (const Entry& entry : trained_) out.push_back(on_host(entry.tensor.grad()));
  return out;
}

std::vector<Gradient> ParameterSet::host_values() const {
  std::vector<Gradient> out;
  for (const Entry& entry : trained_) out.push_back(on_host(entry.tensor));
  return out;
}

DeferredNumber ParameterSet::gradient_norm() const {
  if (device().is_cpu()) return norm_of(gradients());
  std::vector<Tensor> all;
  for (const Entry& entry : trained_)
    if (const Tensor gradient = entry.tensor.grad(); gradient.defined()) all.push_back(gradient);
  if (all.empty()) return 0;
  return DeferredNumber(at::stack(at::_foreach_norm(all, 2, at::kDouble)).norm());
}

std::vector<Gradient> ParameterSet::gradients() const {
  std::vector<Gradient> out;
  for (const Entry& entry : trained_) {
    const Tensor& gradient = entry.tensor.grad();
    require(!gradient.defined() || gradient.is_contiguous(), "train",
            "the gradient of {} is not contiguous", entry.decl.name);
    out.push_back(
        {gradient.defined() ? gradient.const_data_ptr<float>() : nullptr, entry.decl.elements()});
  }
  return out;
}

}  // namespace tessera::train
