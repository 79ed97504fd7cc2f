#include "tessera/train/loop/adapter.h"

#include <algorithm>

#include "tessera/convert/checkpoint.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/placement.h"
#include "tessera/ops/weights/to_device.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/loop/parameters.h"
#include "tessera/train/loop/init_weights.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/recipe/start.h"

namespace tessera::train {

namespace {

/// Default targets of IA3 factors, as in PEFT.
constexpr const char *kFactored[] = {"mixer.k", "mixer.v"}, *kFactoredInput = "ffn.down";

/// Of the matrices that an adapter names; "" = all.
std::vector<model::OverlayTarget> targets_of(const MatrixKeys& keys,
                                             std::vector<std::string> names,
                                             const model::OverlayTarget& otherwise = {}) {
  if (names.empty()) names.emplace_back();
  std::vector<model::OverlayTarget> targets;
  for (std::string& name : names) {
    model::OverlayTarget& target = targets.emplace_back(otherwise);
    target.name = std::move(name);
    target.exclude = keys.exclude;
    target.layers = keys.layers;
  }
  return targets;
}

/// The tokens whose embeddings initialize a prompt.
std::vector<int64_t> first_prompt(const PromptAdapter& how, const ModelPlan& plan) {
  std::vector<int64_t> ids;
  if (how.text) {
    if (const TaskRecipe* task = plan.data.task())
      fail(ErrorKind::spec, "adapter.text",
           "given for the task \"{}\", which has no tokenizer; leave it out", spec::type_of(*task));
    const auto own = open_tokenizer(plan.data).encode(*how.text, {.add_special = false});
    if (own.empty()) fail(ErrorKind::spec, "adapter.text", "has no tokens; expected some");
    while (std::ssize(ids) < how.tokens) ids.insert(ids.end(), own.begin(), own.end());
  } else {
    const RandomKey key =
        RandomKey(static_cast<uint64_t>(plan.train.seed)).fold("overlay").fold("prompt");
    for (int64_t i = 0; i < how.tokens; ++i)
      ids.push_back(
          static_cast<int64_t>(static_cast<double>(key.uniform(static_cast<uint64_t>(i))) *
                               static_cast<double>(plan.spec.vocab)));
  }
  ids.resize(static_cast<size_t>(how.tokens));
  return ids;
}

/// Makes the initial adapters of each type.
struct FreshAdapters {
  using Adapters = std::vector<model::WeightAdapter>;
  const ModelPlan& plan;
  const model::Model& frozen;
  uint64_t seed;

  Adapters operator()(const LoraAdapter& how) const {
    model::OverlayTarget all{.name = "",
                             .rank = how.rank,
                             .alpha = how.alpha,
                             .dropout = how.dropout,
                             .rslora = how.rslora};
    for (const AdapterSizeRecipe& size : how.sizes)
      all.sizes.push_back({size.target, size.rank, size.alpha});
    return model::fresh_overlays(plan.spec, targets_of(how, how.targets, all), seed);
  }
  Adapters operator()(const DoraAdapter& how) const {
    Adapters overlays = (*this)(static_cast<const LoraAdapter&>(how));
    model::add_magnitudes(overlays, frozen.weights());
    return overlays;
  }
  Adapters operator()(const Ia3Adapter& how) const {
    std::vector<std::string> names = how.targets, inputs = how.inputs;
    if (names.empty()) {
      if (inputs.empty()) inputs.emplace_back(kFactoredInput);
      names.assign(std::begin(kFactored), std::end(kFactored));
      names.insert(names.end(), inputs.begin(), inputs.end());
    }
    return model::fresh_factors(plan.spec, targets_of(how, std::move(names)), inputs);
  }
  Adapters operator()(const PrefixAdapter& how) const {
    return model::fresh_prefix(plan.spec, how.tokens, seed);
  }
  Adapters operator()(const PromptAdapter& how) const {
    return {model::prompt_of(frozen, first_prompt(how, plan))};
  }
};

std::vector<model::WeightAdapter> fresh(const ModelPlan& plan, const model::Model& frozen) {
  return std::visit(FreshAdapters{plan, frozen, static_cast<uint64_t>(plan.train.seed)},
                    *plan.adapter);
}

/// The parameters that match a recipe's patterns.
std::vector<std::string> saved_names(const model::Model& model,
                                     const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    const size_t before = names.size();
    for (const auto& [decl, weight] : model.weights().all())
      if (matches(decl.name, pattern) &&
          std::find(names.begin(), names.end(), decl.name) == names.end())
        names.push_back(decl.name);
    if (names.size() == before)
      fail(ErrorKind::usage, "adapter",
           "save \"{}\" names no parameter of this model that an earlier pattern has left (see "
           "`tessera show --parameters`)",
           pattern);
  }
  return names;
}

/// Gives a model the head of the recipe's spec, newly initialized if its own differs. All other
/// parameters must match.
void give_head(const ModelPlan& plan, convert::Checkpoint& base) {
  const auto initial = model::Weights::initial(plan.spec, static_cast<uint64_t>(plan.train.seed));
  std::vector<format::TensorView> kept;
  for (const format::TensorView& view : base.tensors) {
    const model::WeightPtr own = is_of_head(view.name) ? initial.find(view.name) : nullptr;
    if (!is_of_head(view.name) || (own != nullptr && own->shape() == view.shape))
      kept.push_back(view);
  }
  for (const auto& [decl, weight] : initial.all()) {
    const bool there = std::any_of(kept.begin(), kept.end(), [&](const format::TensorView& view) {
      return view.name == decl.name;
    });
    if (there || !is_of_head(decl.name)) continue;
    kept.push_back(
        {decl.name,
         DType::f32,
         decl.shape,
         {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())},
         weight});
  }
  base.tensors = std::move(kept);
}

int64_t elements_of(const std::vector<model::WeightAdapter>& adapters) {
  int64_t n = 0;
  for (const model::WeightAdapter& adapter : adapters) {
    for (const auto& [decl, tensor] : parameters_of(adapter)) n += decl.elements();
    if (adapter.whole != nullptr) n += adapter.whole->elements();
  }
  return n;
}

}  // namespace

model::Model start_model(const ModelPlan& plan) {
  if (!plan.adapter) return {plan.spec, start_weights(plan).weights};
  convert::Checkpoint base = load_start(*plan.init);
  if (plan.init->partial) give_head(plan, base);
  // the recipe's spec may differ in keys without parameters, such as router losses
  return {plan.spec, infer::weights_of(base, plan.spec)};
}

AdapterInit adapter_start(const ModelPlan& plan, at::Device device) {
  model::Model frozen = start_model(plan);
  std::vector<model::WeightAdapter> adapters = fresh(plan, frozen);
  const size_t matrices = adapters.size();
  std::vector<std::string> saved =
      saved_names(frozen, adapter_keys<SavedKeys>(*plan.adapter)->save);
  // labels of a newly initialized head have no meaning yet
  if (plan.data.labels() != nullptr)
    for (const auto& [decl, weight] : frozen.weights().all())
      if (is_of_head(decl.name) && std::find(saved.begin(), saved.end(), decl.name) == saved.end())
        saved.push_back(decl.name);
  for (model::WeightAdapter& whole : model::whole_weights(frozen, saved))
    adapters.push_back(std::move(whole));
  int64_t all = 0;
  for (const auto& [decl, weight] : frozen.weights().all()) all += decl.elements();
  const int64_t trainable = elements_of(adapters);
  std::string line =
      fmt::format("trainable parameters: {} of {} ({:.2f} %), ", trainable, all + trainable,
                  100.0 * static_cast<double>(trainable) /
                      static_cast<double>(std::max<int64_t>(1, all + trainable)));
  const auto* keys = adapter_keys<VirtualTokenKeys>(*plan.adapter);
  line += keys != nullptr
              ? fmt::format("{} virtual tokens in front of every document", keys->tokens)
              : fmt::format("in {} matrices", matrices);
  if (adapters.size() > matrices)
    line += fmt::format(", {} parameter tensors in full", adapters.size() - matrices);
  line += fmt::format("; base model {} frozen", plan.init->from);
  if (!device.is_cpu()) {
    frozen = model::to_device(frozen, device);
    for (model::WeightAdapter& adapter : adapters) {
      for (const model::OverlayPart& part : model::kOverlayParts)
        adapter.*part.part = ops::to_device(adapter.*part.part, device);
      adapter.whole = ops::to_device(adapter.whole, device);
    }
  }
  model::Model model = model::with_adapters(frozen, adapters);
  return {std::move(model), std::move(adapters), std::move(line)};
}

}  // namespace tessera::train
