#include "tessera/train/optimizer/optimizer.h"

#include <algorithm>

#include "tessera/ops/weights/weight.h"
#include "tessera/train/optimizer/adafactor.h"
#include "tessera/train/optimizer/adam_int8.h"
#include "tessera/train/optimizer/device_rules.h"
#include "tessera/train/optimizer/lion.h"
#include "tessera/train/optimizer/memory_tensor.h"
#include "tessera/train/optimizer/muon.h"
#include "tessera/train/optimizer/schedule_free.h"
#include "tessera/train/optimizer/sgd.h"
#include "tessera/train/optimizer/shampoo.h"

namespace tessera::train {
namespace {

/// True if the last two dimensions are an input and an output of a matrix product, which matrix
/// rules are for. Adapter matrices have no roles.
bool is_matrix(const spec::ParamDecl& decl) {
  return decl.adapts() ||
         (decl.kind == spec::ParamKind::matrix && decl.roles.empty() && decl.shape.size() >= 2);
}

AdamWSettings settings_of(const std::vector<double>& betas, double eps, bool coupled = false) {
  return {betas[0], betas[1], eps, coupled};
}

std::unique_ptr<UpdateRule> make_rule(const RuleKeys& rule,
                                      std::vector<ParameterInfo> slots,
                                      std::span<const Parameter> weights) {
  struct Maker {
    std::vector<ParameterInfo>& slots;
    std::span<const Parameter> weights;
    std::unique_ptr<UpdateRule> adam(const AdamWKeys& keys, bool coupled) const {
      const AdamWSettings settings = settings_of(keys.betas, keys.eps, coupled);
      if (keys.moments == MomentStorage::int8)
        return std::make_unique<AdamInt8>(std::move(slots), settings);
      return std::make_unique<AdamW>(std::move(slots), settings);
    }
    std::unique_ptr<UpdateRule> operator()(const AdamWKeys& keys) const {
      return adam(keys, false);
    }
    std::unique_ptr<UpdateRule> operator()(const AdamKeys& keys) const { return adam(keys, true); }
    std::unique_ptr<UpdateRule> operator()(const SgdKeys& keys) const {
      return std::make_unique<Sgd>(std::move(slots),
                                   SgdSettings{keys.momentum, keys.dampening, keys.nesterov});
    }
    std::unique_ptr<UpdateRule> operator()(const LionKeys& keys) const {
      return std::make_unique<Lion>(std::move(slots), keys.betas[0], keys.betas[1]);
    }
    std::unique_ptr<UpdateRule> operator()(const AdafactorKeys& keys) const {
      return std::make_unique<Adafactor>(
          std::move(slots),
          AdafactorSettings{keys.form == AdafactorForm::torch, keys.decay_power, keys.clip,
                            keys.smallest_rms, keys.beta1, keys.scale_parameter});
    }
    std::unique_ptr<UpdateRule> operator()(const MuonKeys& keys) const {
      return std::make_unique<Muon>(std::move(slots), keys);
    }
    std::unique_ptr<UpdateRule> operator()(const SoapKeys& keys) const {
      return std::make_unique<Soap>(std::move(slots), keys);
    }
    std::unique_ptr<UpdateRule> operator()(const ShampooKeys& keys) const {
      return std::make_unique<Shampoo>(std::move(slots), keys);
    }
    std::unique_ptr<UpdateRule> operator()(const ScheduleFreeKeys& keys) const {
      return std::make_unique<ScheduleFree>(
          std::move(slots),
          ScheduleFreeSettings{keys.betas[0], keys.betas[1], keys.eps, keys.weight_power}, weights);
    }
  };
  return std::visit(Maker{slots, weights}, rule);
}

/// The rule for parameters that `recipe`'s own rule does not cover; nullopt if it covers all.
std::optional<RuleRecipe> rule_of_others(const RuleRecipe& recipe) {
  const auto adam = [](double lr, const std::vector<double>& betas, double eps) {
    AdamWKeys keys;
    keys.betas = betas;
    keys.eps = eps;
    return RuleRecipe{keys, lr};
  };
  if (const auto* muon = std::get_if<MuonKeys>(&recipe.keys))
    return adam(muon->adamw.lr, muon->adamw.betas, muon->adamw.eps);
  if (const auto* soap = std::get_if<SoapKeys>(&recipe.keys))
    return adam(recipe.lr, soap->betas, soap->eps);
  if (const auto* shampoo = std::get_if<ShampooKeys>(&recipe.keys))
    return adam(recipe.lr, shampoo->betas, shampoo->eps);
  return std::nullopt;
}

}  // namespace

Optimizer::Optimizer(const OptimizerRecipe& recipe, const ParameterSet& parameters)
    : parameters_(parameters), average_(recipe.average) {
  // the recipe's rule first, then those of its groups
  std::vector<RuleRecipe> rules{{recipe.rule, recipe.lr}};
  std::vector<std::vector<size_t>> entries(1);
  std::map<size_t, size_t> of_group;
  for (size_t i = 0; i < parameters.trained().size(); ++i) {
    const ParameterGroup& group = parameters.group_of(parameters.trained()[i]);
    size_t rule = 0;
    if (group.optimizer) {
      const auto [known, fresh] = of_group.emplace(group.rule, rules.size());
      if (fresh) {
        rules.push_back(*group.optimizer);
        entries.emplace_back();
      }
      rule = known->second;
    }
    entries[rule].push_back(i);
  }
  for (size_t r = 0; r < rules.size(); ++r) {
    const auto others_rule = rule_of_others(rules[r]);
    if (!others_rule) {
      add_rule(rules[r], entries[r]);
      continue;
    }
    std::vector<size_t> matrices, others;
    for (const size_t i : entries[r])
      (is_matrix(parameters.trained()[i].decl) ? matrices : others).push_back(i);
    add_rule(rules[r], std::move(matrices));
    add_rule(*others_rule, std::move(others));
  }
  if (!average_) return;
  for (size_t i = 0; i < parameters.trained().size(); ++i) swapped_.push_back(values(i).clone());
}

Optimizer::~Optimizer() = default;

/// Small parameters of a rule with int8 moments have a float32 rule.
void Optimizer::add_rule(const RuleRecipe& recipe, std::vector<size_t> entries) {
  if (entries.empty()) return;
  RuleRecipe plain = recipe;
  const auto packs = [](RuleKeys& keys) -> MomentStorage* {
    if (auto* adam = std::get_if<AdamKeys>(&keys)) return &adam->moments;
    if (auto* adamw = std::get_if<AdamWKeys>(&keys)) return &adamw->moments;
    return nullptr;
  };
  if (MomentStorage* moments = packs(plain.keys); moments && *moments == MomentStorage::int8) {
    *moments = MomentStorage::float32;
    const auto large = [&](size_t i) {
      return parameters_.trained()[i].decl.elements() >= AdamInt8::kSmallest;
    };
    const auto small = std::stable_partition(entries.begin(), entries.end(), large);
    add_rule(plain, {small, entries.end()});
    entries.erase(small, entries.end());
    if (entries.empty()) return;
  }
  std::vector<ParameterInfo> slots;
  for (const size_t i : entries) {
    const ParameterSet::Entry& entry = parameters_.trained()[i];
    const ParameterGroup& group = parameters_.group_of(entry);
    slots.push_back({entry.decl.name, entry.decl.shape, group.weight_decay, group.lr_factor});
  }
  Member member{spec::type_of(recipe.keys), recipe.lr, std::move(entries), nullptr};
  const std::vector<Parameter> memory = memory_of(member, {});
  member.rule = parameters_.device().is_cpu()
                    ? make_rule(recipe.keys, std::move(slots), memory)
                    : device_rule(recipe.keys, std::move(slots), parameters_.device(), memory);
  members_.push_back(std::move(member));
}

Tensor Optimizer::values(size_t entry) const {
  return parameters_.trained()[entry].tensor.detach();
}

float* Optimizer::weights(size_t entry) const {
  return static_cast<float*>(parameters_.trained()[entry].tensor.mutable_data_ptr());
}

std::vector<Parameter> Optimizer::memory_of(const Member& member,
                                            const std::vector<Gradient>& gradients) const {
  std::vector<Parameter> memory;
  for (const size_t i : member.entries)
    memory.push_back({weights(i), gradients.empty() ? nullptr : gradients[i].data});
  return memory;
}

void Optimizer::update(double factor, double scale) {
  require(!shown_, "optimizer", "an update while the average is shown");
  ++updates_;
  const std::vector<Gradient> gradients = parameters_.gradients();
  for (const Member& member : members_)
    member.rule->update(memory_of(member, gradients), {updates_, member.lr * factor, scale});
  if (!average_) return;
  const bool begins = updates_ <= average_->from;
  const auto decay = static_cast<float>(average_->decay);
  if (!parameters_.device().is_cpu()) {
    const at::NoGradGuard no_graph;
    std::vector<Tensor> now;
    for (size_t i = 0; i < swapped_.size(); ++i) now.push_back(values(i));
    if (begins) return at::_foreach_copy_(swapped_, now);
    at::_foreach_mul_(swapped_, decay);
    return at::_foreach_add_(swapped_, now, 1 - decay);
  }
  for (size_t i = 0; i < swapped_.size(); ++i) {
    const float* w = weights(i);
    float* e = swapped_[i].mutable_data_ptr<float>();
    parallel_for(swapped_[i].numel(), 16384, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k)
        e[k] = begins ? w[k] : decay * e[k] + (1 - decay) * w[k];
    });
  }
}

bool Optimizer::averages() const {
  return average_ || std::any_of(members_.begin(), members_.end(),
                                 [](const Member& member) { return member.rule->averages(); });
}

void Optimizer::swap_average() {
  for (size_t i = 0; i < swapped_.size(); ++i) {
    const Tensor w = values(i), before = w.clone();
    w.copy_(swapped_[i]);
    swapped_[i].copy_(before);
  }
}

void Optimizer::show_average() {
  require(!shown_, "optimizer", "the average is shown already");
  shown_ = true;
  if (average_) return swap_average();
  swapped_.resize(parameters_.trained().size());
  for (const Member& member : members_) {
    if (!member.rule->averages()) continue;
    for (size_t s = 0; s < member.entries.size(); ++s) {
      const size_t entry = member.entries[s];
      swapped_[entry] = values(entry).clone();
      member.rule->to_average(s, weights(entry));
    }
  }
}

void Optimizer::hide_average() {
  require(shown_, "optimizer", "no average is shown");
  shown_ = false;
  if (average_) return swap_average();
  for (size_t i = 0; i < swapped_.size(); ++i)
    if (swapped_[i].defined()) values(i).copy_(swapped_[i]);
  swapped_.clear();
}

std::vector<Optimizer::StateTensor> Optimizer::state() {
  std::vector<StateTensor> out;
  for (size_t m = 0; m < members_.size(); ++m)
    for (const RuleState& state : members_[m].rule->state())
      out.push_back({state.parameter.empty() ? fmt::format("rule{}.{}", m, state.name) : state.name,
                     state.parameter,
                     memory_tensor(state.data, state.shape,
                                   state.on_host ? at::Device(at::kCPU) : parameters_.device(),
                                   ops::scalar_type_of(state.dtype))});
  for (size_t i = 0; i < swapped_.size(); ++i) {
    if (!swapped_[i].defined()) continue;
    const std::string& name = parameters_.trained()[i].decl.name;
    out.push_back({(shown_ ? "trained." : "average.") + name, name, swapped_[i]});
  }
  return out;
}

std::string Optimizer::memory_text() {
  std::map<std::string, int64_t> bytes;
  for (const Member& member : members_)
    for (const RuleState& state : member.rule->state()) bytes[member.name] += state.bytes();
  for (const Tensor& of : swapped_)
    if (of.defined()) bytes["average"] += static_cast<int64_t>(of.nbytes());
  std::string text;
  for (const auto& [name, n] : bytes)
    text += fmt::format("{}{} {:.3g} MB", text.empty() ? "" : ", ", name,
                        static_cast<double>(n) * 1e-6);
  return text;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe,
                                          const ParameterSet& parameters) {
  return std::make_unique<Optimizer>(recipe, parameters);
}

}  // namespace tessera::train
