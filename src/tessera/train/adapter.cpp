#include "tessera/train/adapter.h"

#include "tessera/convert/checkpoint.h"
#include "tessera/infer/load_model.h"
#include "tessera/train/start.h"

namespace tessera::train {

AdapterStart adapter_start(const Recipe& recipe) {
  const AdapterRecipe& how = *recipe.adapter;
  const convert::Checkpoint base = convert::load_checkpoint(start_of(recipe.init->from));
  std::vector<std::string> names = how.targets;
  if (names.empty()) names.emplace_back();
  std::vector<model::OverlayTarget> targets;
  for (const std::string& name : names)
    targets.push_back({.name = name,
                       .rank = how.rank,
                       .alpha = how.alpha,
                       .dropout = how.dropout,
                       .by_root = how.rslora});
  // the recipe's spec may say otherwise what no parameter depends on, such as a router's losses
  const model::Model frozen(recipe.spec, infer::weights_of(base, recipe.spec));
  auto adapters =
      model::fresh_overlays(recipe.spec, targets, static_cast<uint64_t>(recipe.train.seed));
  int64_t all = 0, trained = 0;
  for (const auto& [decl, weight] : frozen.weights().all()) all += decl.elements();
  for (const model::Overlay& adapter : adapters)
    trained += adapter.a->elements() + adapter.b->elements();
  std::string line =
      fmt::format("{} parameters train, beside {} matrices of {}, whose {} stay as they are stored",
                  trained, adapters.size(), recipe.init->from, all);
  model::Model model = model::with_overlays(frozen, adapters);
  return {std::move(model), std::move(adapters), std::move(line)};
}

}  // namespace tessera::train
