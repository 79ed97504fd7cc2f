#include "tessera/model/overlay.h"

#include <cmath>

#include "tessera/ops/random.h"

namespace tessera::model {
namespace {

constexpr std::string_view kWeight = ".weight";

/// A matrix of a layer, or those of its experts, which adapters may stand beside.
bool adapts(const spec::ParamDecl& decl) {
  const bool stack = decl.shape.size() == 3 && decl.axis_of(spec::Role::expert) == 0;
  return decl.adapts() && (decl.shape.size() == 2 || stack) &&
         decl.name.find("layers.") != std::string::npos;
}

/// Whether `name` without ".weight" ends in the words of `target`.
bool named(const std::string& name, const std::string& target) {
  if (target.empty()) return true;
  const std::string_view own = std::string_view(name).substr(0, name.size() - kWeight.size());
  return own == target || own.ends_with("." + target);
}

WeightPtr trainable(const std::string& name, Tensor numbers) {
  return std::make_shared<const ops::Weight>(
      ops::Weight::dense(name, numbers.requires_grad_(true)));
}

}  // namespace

std::vector<Overlay> fresh_overlays(const ModelSpec& spec,
                                    const std::vector<OverlayTarget>& targets,
                                    uint64_t seed) {
  const RandomKey key = RandomKey(seed).fold("overlay");
  std::vector<Overlay> overlays;
  std::vector<bool> used(targets.size(), false);
  for (const spec::ParamDecl& decl : parameters(spec)) {
    if (!adapts(decl)) continue;
    for (size_t t = 0; t < targets.size(); ++t) {
      if (!named(decl.name, targets[t].name)) continue;
      const size_t axes = decl.shape.size();
      const int64_t o = decl.shape[axes - 2], i = decl.shape[axes - 1], r = targets[t].rank;
      if (r < 1 || r > std::min(o, i))
        fail(ErrorKind::usage, "adapter", "rank = {} beside {} [{}, {}]; expected 1 to {}", r,
             decl.name, o, i, std::min(o, i));
      if (!(targets[t].dropout >= 0 && targets[t].dropout < 1))
        fail(ErrorKind::usage, "adapter", "dropout = {} beside {}; expected 0 to below 1",
             targets[t].dropout, decl.name);
      const double bound = 1 / std::sqrt(static_cast<double>(i)), rank = static_cast<double>(r);
      std::vector<int64_t> down = decl.shape, up = decl.shape;
      down[axes - 2] = up[axes - 1] = r;
      const spec::ParamDecl a{decl.name + ".lora_a", down, spec::Init::uniform(-bound, bound)};
      overlays.push_back({decl.name, trainable(a.name, ops::initial_values(a, key, at::kFloat)),
                          trainable(decl.name + ".lora_b", at::zeros(up, at::kFloat)),
                          targets[t].alpha / (targets[t].by_root ? std::sqrt(rank) : rank),
                          targets[t].dropout});
      used[t] = true;
      break;
    }
  }
  for (size_t t = 0; t < targets.size(); ++t)
    if (!used[t])
      fail(ErrorKind::usage, "adapter",
           "target \"{}\" names no matrix of the layers that has none yet; expected the end of a "
           "name such as \"mixer.q\" (see `tessera show --parameters`)",
           targets[t].name);
  return overlays;
}

Model with_overlays(const Model& model, const std::vector<Overlay>& overlays) {
  std::map<std::string, WeightPtr> weights;
  for (const auto& [decl, weight] : model.weights().all()) weights[decl.name] = weight;
  for (const Overlay& overlay : overlays) {
    const auto found = weights.find(overlay.weight);
    if (found == weights.end())
      fail(ErrorKind::usage, "adapter", "the model has no weight \"{}\"", overlay.weight);
    const WeightPtr& w = found->second;
    if (w->parts() != nullptr)
      fail(ErrorKind::usage, "adapter", "\"{}\" has an adapter already", overlay.weight);
    const auto &whole = w->shape(), &a = overlay.a->shape(), &b = overlay.b->shape();
    const size_t axes = whole.size();
    std::vector<int64_t> down = whole, up = whole;
    const bool fits = (axes == 2 || axes == 3) && a.size() == axes && b.size() == axes;
    if (fits) down[axes - 2] = up[axes - 1] = a[axes - 2];
    if (!fits || a != down || b != up)
      fail(ErrorKind::usage, "adapter",
           "\"{}\" is [{}]; found A [{}] and B [{}], expected [r, I] and [O, r], of experts one "
           "each",
           overlay.weight, fmt::join(whole, ", "), fmt::join(a, ", "), fmt::join(b, ", "));
    if (!(overlay.dropout >= 0 && overlay.dropout < 1))
      fail(ErrorKind::usage, "adapter", "dropout = {} beside {}; expected 0 to below 1",
           overlay.dropout, overlay.weight);
    found->second = std::make_shared<const ops::Weight>(
        ops::Weight::adapted(w, overlay.a, overlay.b, overlay.scale, overlay.dropout));
  }
  return Model(model.spec(), Weights::check(model.spec(), std::move(weights)));
}

Tensor merged(const Weights& weights, const Overlay& overlay) {
  const WeightPtr w = weights.find(overlay.weight);
  require(w != nullptr, "adapter", "no weight \"{}\"", overlay.weight);
  const at::NoGradGuard guard;
  const WeightPtr base = w->parts() != nullptr ? w->parts()->w : w;
  return ops::Weight::adapted(base, overlay.a, overlay.b, overlay.scale).tensor();
}

}  // namespace tessera::model
