#include "tessera/model/weight_adapter.h"

#include <algorithm>
#include <cmath>

#include "tessera/model/virtual_tokens.h"
#include "tessera/nn/embed/token.h"
#include "tessera/ops/random.h"

namespace tessera::model {
namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";
constexpr double kPrefixDeviation = 0.02;  // as token embeddings are initialized

/// A matrix of a layer, or those of its experts, that can have adapters.
bool adapts(const spec::ParamDecl& decl) {
  const bool stack = decl.shape.size() == 3 && decl.axis_of(spec::Role::expert) == 0;
  return decl.adapts() && (decl.shape.size() == 2 || stack) &&
         decl.name.find("layers.") != std::string::npos;
}

/// True if `name` without ".weight" ends with the words of `target`.
bool named(const std::string& name, const std::string& target) {
  if (target.empty()) return true;
  const std::string_view own = std::string_view(name).substr(0, name.size() - kWeight.size());
  return own == target || own.ends_with("." + target);
}

bool named_by_any(const std::string& name, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return named(name, target); });
}

/// The layer of a weight: the first number of its name; -1 = none.
int64_t layer_of(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    if (!word.empty() && word.size() < 10 &&
        std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return std::stoll(word);
    begin = end + 1;
  }
  return -1;
}

WeightPtr trainable(const std::string& name, Tensor numbers) {
  return std::make_shared<const ops::Weight>(
      ops::Weight::dense(name, numbers.requires_grad_(true)));
}

/// Calls body(declaration, target) for every matrix of a target.
template <class Body>
void for_targets(const ModelSpec& spec, const std::vector<OverlayTarget>& targets, Body body) {
  std::vector<bool> used(targets.size(), false);
  std::map<std::string, bool> sizes;
  for (const spec::ParamDecl& decl : parameters(spec)) {
    if (!adapts(decl)) continue;
    for (size_t t = 0; t < targets.size(); ++t) {
      const OverlayTarget& target = targets[t];
      if (!named(decl.name, target.name)) continue;
      used[t] = true;
      const auto& layers = target.layers;
      if (named_by_any(decl.name, target.exclude) ||
          (!layers.empty() &&
           std::find(layers.begin(), layers.end(), layer_of(decl.name)) == layers.end()))
        break;
      for (const OverlaySize& size : target.sizes)
        if (named(decl.name, size.name)) sizes[size.name] = true;
      body(decl, target);
      break;
    }
  }
  const auto refuse = [](std::string_view what, const std::string& name) {
    fail(ErrorKind::usage, "adapter",
         "{} \"{}\" names no matrix of the layers that has none yet; expected the end of a "
         "name such as \"mixer.q\" (see `tessera show --parameters`)",
         what, name);
  };
  for (size_t t = 0; t < targets.size(); ++t) {
    if (!used[t]) refuse("target", targets[t].name);
    for (const OverlaySize& size : targets[t].sizes)
      if (!sizes.contains(size.name)) refuse("size", size.name);
  }
}

/// Adapters with their effect on biases.
std::vector<WeightAdapter> with_biases(const std::vector<WeightAdapter>& overlays,
                                       const Weights& weights) {
  std::vector<WeightAdapter> out;
  for (const WeightAdapter& overlay : overlays) {
    out.push_back(overlay);
    if (overlay.out == nullptr || !overlay.weight.ends_with(kWeight)) continue;
    WeightAdapter bias;
    bias.weight = overlay.weight.substr(0, overlay.weight.size() - kWeight.size());
    bias.weight += kBias;
    bias.out = overlay.out;
    if (weights.find(bias.weight) != nullptr) out.push_back(std::move(bias));
  }
  return out;
}

std::string shape_of(const WeightPtr& weight) {
  return weight == nullptr ? "none" : fmt::format("[{}]", fmt::join(weight->shape(), ", "));
}

bool is_product(const WeightAdapter& x) {
  return x.a != nullptr && x.magnitude == nullptr;
}
bool is_factor(const WeightAdapter& x) {
  return x.out != nullptr || x.in != nullptr;
}
bool is_product(const ops::Weight::Adapted& x) {
  return x.a != nullptr && x.magnitude == nullptr && x.out == nullptr && x.in == nullptr;
}
bool is_factor(const ops::Weight::Adapted& x) {
  return x.a == nullptr && (x.out != nullptr || x.in != nullptr);
}

void check_product(const WeightAdapter& overlay, const ops::Weight& w) {
  const auto& whole = w.shape();
  const size_t axes = whole.size();
  std::vector<int64_t> down = whole, up = whole, rows = whole;
  const bool fits = (axes == 2 || axes == 3) && overlay.b != nullptr &&
                    overlay.a->shape().size() == axes && overlay.b->shape().size() == axes;
  if (fits) down[axes - 2] = up[axes - 1] = overlay.a->shape()[axes - 2];
  if (!fits || overlay.a->shape() != down || overlay.b->shape() != up)
    fail(ErrorKind::usage, "adapter",
         "\"{}\" is [{}]; found A {} and B {}, expected [r, I] and [O, r], of experts one "
         "each",
         overlay.weight, fmt::join(whole, ", "), shape_of(overlay.a), shape_of(overlay.b));
  rows.pop_back();
  if (overlay.magnitude != nullptr && overlay.magnitude->shape() != rows)
    fail(ErrorKind::usage, "adapter", "\"{}\" is [{}]; found magnitudes {}, expected [{}]",
         overlay.weight, fmt::join(whole, ", "), shape_of(overlay.magnitude),
         fmt::join(rows, ", "));
  if (!(overlay.dropout >= 0 && overlay.dropout < 1))
    fail(ErrorKind::usage, "adapter", "dropout = {} of {}; expected 0 to below 1", overlay.dropout,
         overlay.weight);
}

void check_factors(const WeightAdapter& overlay, const ops::Weight& w) {
  std::vector<int64_t> rows = w.shape(), columns = w.shape();
  if (w.shape().size() > 1) {
    rows.pop_back();
    columns.erase(columns.end() - 2);
  }
  for (const auto& [part, shape] :
       {std::pair(&overlay.out, &rows), std::pair(&overlay.in, &columns)})
    if (*part != nullptr && (*part)->shape() != *shape)
      fail(ErrorKind::usage, "adapter", "\"{}\" is [{}]; found factors {}, expected [{}]",
           overlay.weight, fmt::join(w.shape(), ", "), shape_of(*part), fmt::join(*shape, ", "));
}

void check_prefix(const WeightAdapter& overlay, const ops::Weight& w, const ModelSpec& spec) {
  const bool prompt = overlay.weight == kTokenTable;
  if (const std::string reason = no_virtual_reason(spec, !prompt); !reason.empty())
    fail(ErrorKind::usage, "adapter", "virtual tokens: {}", reason);
  const std::vector<std::string> sites = key_value_weights(spec);
  if (!prompt && std::find(sites.begin(), sites.end(), overlay.weight) == sites.end())
    fail(ErrorKind::usage, "adapter", "a prefix of \"{}\"; expected keys and values of attention",
         overlay.weight);
  const int64_t width = prompt ? spec.d_model : w.size(0);
  const auto& shape = overlay.prefix->shape();
  if (shape.size() != 2 || shape[0] < 1 || shape[1] != width)
    fail(ErrorKind::usage, "adapter", "\"{}\": found virtual tokens {}, expected [tokens, {}]",
         overlay.weight, shape_of(overlay.prefix), width);
}

/// The weight with its adapter.
WeightPtr placed(const WeightPtr& w, const WeightAdapter& overlay, const ModelSpec& spec) {
  if (const ops::Weight::Adapted* parts = w->parts()) {
    const bool adds_up = (is_product(overlay) && is_product(*parts)) ||
                         (is_factor(overlay) && overlay.a == nullptr && is_factor(*parts));
    if (!adds_up)
      fail(ErrorKind::usage, "adapter",
           "\"{}\" has an adapter already, and the two do not add up; expected several of low rank "
           "(without magnitudes), or several of factors",
           overlay.weight);
  }
  if (overlay.whole != nullptr) {
    if (overlay.whole->shape() != w->shape())
      fail(ErrorKind::usage, "adapter", "\"{}\" is [{}]; found {} in its place", overlay.weight,
           fmt::join(w->shape(), ", "), shape_of(overlay.whole));
    return overlay.whole;
  }
  if (overlay.a != nullptr) check_product(overlay, *w);
  if (is_factor(overlay)) check_factors(overlay, *w);
  if (overlay.prefix != nullptr) check_prefix(overlay, *w, spec);
  return std::make_shared<const ops::Weight>(ops::Weight::adapted({.w = w,
                                                                   .a = overlay.a,
                                                                   .b = overlay.b,
                                                                   .scale = overlay.scale,
                                                                   .dropout = overlay.dropout,
                                                                   .magnitude = overlay.magnitude,
                                                                   .out = overlay.out,
                                                                   .in = overlay.in,
                                                                   .prefix = overlay.prefix}));
}

/// Checks that all virtual tokens of a model have the same number, and none is repeated.
void check_virtual(const std::vector<WeightAdapter>& overlays, const ModelSpec& spec) {
  int64_t tokens = 0;
  std::set<std::string> places;
  for (const WeightAdapter& overlay : overlays) {
    if (overlay.prefix == nullptr) continue;
    const int64_t own = overlay.prefix->size(0);
    if (tokens > 0 && own != tokens)
      fail(ErrorKind::usage, "adapter", "{} virtual tokens at \"{}\" and {} elsewhere", own,
           overlay.weight, tokens);
    tokens = own;
    places.insert(overlay.weight);
  }
  if (places.empty() || places.contains(kTokenTable)) return;
  for (const std::string& name : key_value_weights(spec))
    if (!places.contains(name))
      fail(ErrorKind::usage, "adapter",
           "virtual tokens have keys and values in some layers, but not at \"{}\"", name);
}

}  // namespace

std::vector<WeightAdapter> fresh_overlays(const ModelSpec& spec,
                                          const std::vector<OverlayTarget>& targets,
                                          uint64_t seed) {
  const RandomKey key = RandomKey(seed).fold("overlay");
  std::vector<WeightAdapter> overlays;
  for_targets(spec, targets, [&](const spec::ParamDecl& decl, const OverlayTarget& target) {
    OverlaySize size{"", target.rank, target.alpha};
    for (auto special = target.sizes.rbegin(); special != target.sizes.rend(); ++special)
      if (named(decl.name, special->name)) size = *special;
    const size_t axes = decl.shape.size();
    const int64_t o = decl.shape[axes - 2], i = decl.shape[axes - 1], r = size.rank;
    if (r < 1 || r > std::min(o, i))
      fail(ErrorKind::usage, "adapter", "rank = {} of {} [{}, {}]; expected 1 to {}", r, decl.name,
           o, i, std::min(o, i));
    if (!(target.dropout >= 0 && target.dropout < 1))
      fail(ErrorKind::usage, "adapter", "dropout = {} of {}; expected 0 to below 1", target.dropout,
           decl.name);
    const double bound = 1 / std::sqrt(static_cast<double>(i)), rank = static_cast<double>(r);
    std::vector<int64_t> down = decl.shape, up = decl.shape;
    down[axes - 2] = up[axes - 1] = r;
    const spec::ParamDecl a{decl.name + ".lora_a", down, spec::Init::uniform(-bound, bound)};
    overlays.push_back({.weight = decl.name,
                        .a = trainable(a.name, ops::initial_values(a, key, at::kFloat)),
                        .b = trainable(decl.name + ".lora_b", at::zeros(up, at::kFloat)),
                        .scale = size.alpha / (target.rslora ? std::sqrt(rank) : rank),
                        .dropout = target.dropout,
                        .rslora = target.rslora});
  });
  return overlays;
}

void add_magnitudes(std::vector<WeightAdapter>& overlays, const Weights& weights) {
  const at::NoGradGuard constant;
  for (WeightAdapter& overlay : overlays) {
    const WeightPtr w = weights.find(overlay.weight);
    require(w != nullptr && overlay.a != nullptr, "adapter", "no low-rank update of \"{}\"",
            overlay.weight);
    std::vector<int64_t> rows = w->shape();
    rows.pop_back();
    // factors that scale ones to the norms of the rows
    const auto ones =
        std::make_shared<const ops::Weight>(ops::Weight::dense("ones", at::ones(rows, at::kFloat)));
    const ops::Weight unit = ops::Weight::adapted(
        {.w = w, .a = overlay.a, .b = overlay.b, .scale = overlay.scale, .magnitude = ones});
    overlay.magnitude =
        trainable(overlay.weight + ".magnitude",
                  at::reciprocal(unit.parts()->row_factors()).to(at::kFloat).contiguous());
  }
}

std::vector<WeightAdapter> fresh_factors(const ModelSpec& spec,
                                         const std::vector<OverlayTarget>& targets,
                                         const std::vector<std::string>& inputs) {
  std::vector<WeightAdapter> overlays;
  for_targets(spec, targets, [&](const spec::ParamDecl& decl, const OverlayTarget&) {
    WeightAdapter overlay{.weight = decl.name};
    std::vector<int64_t> shape = decl.shape;
    const bool in = named_by_any(decl.name, inputs);
    shape.erase(shape.end() - (in ? 2 : 1));
    (in ? overlay.in : overlay.out) =
        trainable(decl.name + (in ? ".in" : ".out"), at::ones(shape, at::kFloat));
    overlays.push_back(std::move(overlay));
  });
  return overlays;
}

std::vector<WeightAdapter> fresh_prefix(const ModelSpec& spec, int64_t tokens, uint64_t seed) {
  if (const std::string reason = no_virtual_reason(spec, true); !reason.empty())
    fail(ErrorKind::usage, "adapter", "a prefix: {}", reason);
  std::map<std::string, int64_t> widths;
  for (const spec::ParamDecl& decl : parameters(spec)) widths[decl.name] = decl.shape.front();
  const RandomKey key = RandomKey(seed).fold("overlay");
  std::vector<WeightAdapter> overlays;
  for (const std::string& name : key_value_weights(spec)) {
    const spec::ParamDecl decl{
        name + ".prefix", {tokens, widths.at(name)}, spec::Init::normal(kPrefixDeviation)};
    overlays.push_back(
        {.weight = name,
         .prefix = trainable(decl.name, ops::initial_values(decl, key, at::kFloat))});
  }
  return overlays;
}

WeightAdapter prompt_of(const Model& model, const std::vector<int64_t>& ids) {
  const ModelSpec& spec = model.spec();
  if (const std::string reason = no_virtual_reason(spec, false); !reason.empty())
    fail(ErrorKind::usage, "adapter", "a prompt: {}", reason);
  const at::NoGradGuard constant;
  const WeightPtr table = model.weights().find(kTokenTable);
  if (table == nullptr || table->size(1) != spec.d_model)
    fail(ErrorKind::usage, "adapter",
         "prompt tuning needs token embeddings of width d_model = {}; those of this model have "
         "another width",
         spec.d_model);
  Tensor rows = ops::rows(*table, at::tensor(ids, at::kLong)).to(at::kFloat).clone();
  if (const auto* embed = dynamic_cast<const nn::TokenEmbedConfig*>(spec.embed.config.get()))
    rows = rows * embed->scale;
  return {.weight = kTokenTable,
          .prefix = trainable(std::string(kTokenTable) + ".prefix", rows.contiguous())};
}

std::vector<WeightAdapter> whole_weights(const Model& model,
                                         const std::vector<std::string>& names) {
  std::vector<WeightAdapter> overlays;
  for (const std::string& name : names) {
    const WeightPtr weight = model.weights().find(name);
    require(weight != nullptr, "adapter", "no weight \"{}\"", name);
    overlays.push_back(
        {.weight = name,
         .whole = trainable(name, weight->tensor().detach().to(at::kFloat, false, true))});
  }
  return overlays;
}

Model with_adapters(const Model& model, const std::vector<WeightAdapter>& overlays) {
  std::map<std::string, WeightPtr> weights;
  for (const auto& [decl, weight] : model.weights().all()) weights[decl.name] = weight;
  check_virtual(overlays, model.spec());
  for (const WeightAdapter& overlay : with_biases(overlays, model.weights())) {
    const auto found = weights.find(overlay.weight);
    if (found == weights.end())
      fail(ErrorKind::usage, "adapter", "the model has no weight \"{}\"", overlay.weight);
    found->second = placed(found->second, overlay, model.spec());
  }
  return {model.spec(), Weights::check(model.spec(), std::move(weights)), model.arithmetic()};
}

std::map<std::string, Tensor> merged(const Weights& weights,
                                     const std::vector<WeightAdapter>& overlays) {
  const at::NoGradGuard guard;
  std::map<std::string, Tensor> out;
  for (const WeightAdapter& overlay : with_biases(overlays, weights)) {
    const WeightPtr w = weights.find(overlay.weight);
    require(w != nullptr, "adapter", "no weight \"{}\"", overlay.weight);
    if (overlay.prefix != nullptr)
      fail(ErrorKind::usage, "adapter",
           "virtual tokens cannot be merged into weights; load the adapter separately (--adapter)");
    if (overlay.whole != nullptr) {
      out[overlay.weight] = overlay.whole->tensor();
      continue;
    }
    const WeightPtr whole = w->parts() != nullptr ? w->parts()->w : w;
    const auto known = out.find(overlay.weight);
    const auto base = known == out.end() ? whole
                                         : std::make_shared<const ops::Weight>(
                                               ops::Weight::dense(overlay.weight, known->second));
    out[overlay.weight] = ops::Weight::adapted({.w = base,
                                                .a = overlay.a,
                                                .b = overlay.b,
                                                .scale = overlay.scale,
                                                .magnitude = overlay.magnitude,
                                                .out = overlay.out,
                                                .in = overlay.in})
                              .tensor();
  }
  return out;
}

std::map<std::string, Tensor> unmerged(const Weights& weights,
                                       const std::vector<WeightAdapter>& overlays) {
  std::vector<WeightAdapter> back = with_biases(overlays, weights);
  std::reverse(back.begin(), back.end());
  const at::NoGradGuard guard;
  for (WeightAdapter& overlay : back) {
    if (overlay.magnitude != nullptr || overlay.whole != nullptr)
      fail(ErrorKind::usage, "adapter",
           "{} of \"{}\" cannot be subtracted: the original weight is lost; use the original model",
           overlay.whole != nullptr ? "whole weights" : "magnitudes", overlay.weight);
    overlay.scale = -overlay.scale;
    for (WeightPtr* factors : {&overlay.out, &overlay.in}) {
      if (*factors == nullptr) continue;
      const Tensor numbers = (*factors)->tensor();
      if ((numbers == 0).any().item<bool>())
        fail(ErrorKind::usage, "adapter",
             "a factor of 0 on \"{}\" cannot be undone: the original weight is lost; use the "
             "original model",
             overlay.weight);
      *factors = std::make_shared<const ops::Weight>(
          ops::Weight::dense((*factors)->name(), at::reciprocal(numbers)));
    }
  }
  // biases are among them already
  std::map<std::string, Tensor> out;
  for (const WeightAdapter& overlay : back) {
    const auto known = out.find(overlay.weight);
    Tensor w = known != out.end() ? known->second : weights.find(overlay.weight)->tensor();
    const auto base =
        std::make_shared<const ops::Weight>(ops::Weight::dense(overlay.weight, std::move(w)));
    if (overlay.prefix != nullptr)
      fail(ErrorKind::usage, "adapter", "virtual tokens are in no weight; nothing is to be undone");
    out[overlay.weight] = ops::Weight::adapted({.w = base,
                                                .a = overlay.a,
                                                .b = overlay.b,
                                                .scale = overlay.scale,
                                                .out = overlay.out,
                                                .in = overlay.in})
                              .tensor();
  }
  return out;
}

}  // namespace tessera::model
