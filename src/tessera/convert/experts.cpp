#include "tessera/convert/experts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

constexpr const char* kWhere = "experts";

/// Calls visit with every feed-forward part that a branch holds within resolved layers.
void for_each_ffn(Json& json, const std::function<void(Json& ffn)>& visit) {
  if (json.is_array())
    for (Json& one : json) for_each_ffn(one, visit);
  if (!json.is_object()) return;
  for (auto& [key, value] : json.items()) {
    if (key == "ffn" && value.is_object() && value.contains("type"))
      visit(value);
    else
      for_each_ffn(value, visit);
  }
}

/// The layers of a resolved spec, one entry for each.
void unfold(Json& stack) {
  Json layers = Json::array();
  for (Json layer : stack["layers"]) {
    const int64_t repeat = layer.value("repeat", int64_t{1});
    layer.erase("repeat");
    for (int64_t r = 0; r < repeat; ++r) layers.push_back(layer);
  }
  stack["layers"] = std::move(layers);
}

/// Where the layers of a spec stand: its own, or those of its two stacks.
std::vector<Json*> stacks_of(Json& spec) {
  if (!spec.contains("stacks")) return {&spec};
  return {&spec["stacks"]["encoder"], &spec["stacks"]["decoder"]};
}

/// The same of mixtures of experts in the layers of a spec; its predictors stay as they are.
void for_each_mixture(Json& spec, const std::function<void(Json& ffn)>& visit) {
  for (Json* stack : stacks_of(spec))
    for_each_ffn((*stack)["layers"], [&](Json& ffn) {
      if (ffn["type"] == "moe") visit(ffn);
    });
}

/// The same, layer by layer, with the prefix of each one's parameters. Those of layers that share
/// them come once for each.
void for_each_mixture(Json& json,
                      const model::ModelSpec& spec,
                      const std::function<void(const std::string& name, Json& ffn)>& visit) {
  const std::vector<Json*> stacks = stacks_of(json);
  for (size_t s = 0; s < stacks.size(); ++s) {
    const model::ModelSpec& own = stacks.size() == 2 && s == 0 ? *spec.encoder : spec;
    unfold(*stacks[s]);
    Json& layers = (*stacks[s])["layers"];
    for (size_t i = 0; i < layers.size(); ++i) {
      std::vector<std::string> names;  // of feed-forward branches, in the order of the layer
      for (const model::GroupSpec& group : own.layers[i].groups)
        for (const model::BranchSpec& branch : group.branches)
          if (branch.slot == spec::Slot::ffn)
            names.push_back(own.prefix(static_cast<int64_t>(i), branch));
      size_t at = 0;
      for_each_ffn(layers[i], [&](Json& ffn) {
        require(at < names.size(), kWhere, "layer {} has {} feed-forward branches", i,
                names.size());
        const std::string& name = names[at++];
        if (ffn["type"] == "moe") visit(name, ffn);
      });
    }
  }
}

/// Why the experts of a mixture do not stand alone; "" where they do.
std::string no_change_reason(const Json& moe) {
  const Json& router = moe["router"];
  if (const std::string type = router["type"]; type != "top_k" && type != "top_p")
    return fmt::format("router \"{}\"; expected top_k or top_p, whose experts stand alone", type);
  if (router.value("n_groups", 1) > 1)
    return fmt::format("experts in {} groups; expected one", router["n_groups"].dump());
  if (moe.value("zero", 0) + moe.value("identity", 0) > 0)
    return "a mixture with zero or identity experts; expected experts that compute";
  return "";
}

class Old {
 public:
  explicit Old(const std::vector<TensorView>& tensors) {
    for (const TensorView& tensor : tensors) by_name_.emplace(tensor.name, &tensor);
  }
  const TensorView* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  const TensorView& at(const std::string& name) const {
    const TensorView* tensor = find(name);
    require(tensor != nullptr, kWhere, "the model has no {} to begin with", name);
    return *tensor;
  }

 private:
  std::map<std::string, const TensorView*, std::less<>> by_name_;
};

TensorView named(TensorView tensor, const std::string& name) {
  tensor.name = name;
  return tensor;
}

/// The checkpoint with another spec, every parameter made by `tensor`.
Checkpoint with_spec(Checkpoint checkpoint,
                     const Json& json,
                     const std::function<TensorView(const Old&, const spec::ParamDecl&)>& tensor) {
  checkpoint.spec = model::read_model_spec(json);
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  const Old old(checkpoint.tensors);
  std::vector<TensorView> tensors;
  for (const spec::ParamDecl& decl : model::parameters(checkpoint.spec)) {
    tensors.push_back(named(tensor(old, decl), decl.name));
    require(tensors.back().shape == decl.shape, kWhere, "{} came out as {}; the spec wants {}",
            decl.name, format::shape_text(tensors.back().shape), format::shape_text(decl.shape));
  }
  checkpoint.tensors = std::move(tensors);
  return checkpoint;
}

/// "a.experts.b" -> {"a", "b"}; nothing for other names.
std::pair<std::string, std::string> within_experts(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.rfind(kExperts);
  if (at == std::string::npos) return {};
  return {name.substr(0, at), name.substr(at + kExperts.size())};
}

/// Slices of the first axis, without it.
std::vector<TensorView> slices(const TensorView& stack) {
  const std::vector<int64_t> ones(static_cast<size_t>(stack.shape[0]), 1);
  std::vector<TensorView> out;
  for (const TensorView& one : split(stack, 0, ones))
    out.push_back(reshaped(one, {stack.shape.begin() + 1, stack.shape.end()}));
  return out;
}

TensorView stacked(std::span<const TensorView> tensors) {
  std::vector<TensorView> rows;
  for (const TensorView& tensor : tensors) {
    Shape shape{1};
    shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
    rows.push_back(reshaped(tensor, shape));
  }
  return joined(rows, 0);
}

/// The loads of the router below `ffn`; of E experts. Empty where nothing is known of any router.
std::vector<double> load_of(const ExpertLoads& use, const std::string& ffn, int64_t experts) {
  if (use.empty()) return {};
  const auto found = use.find(ffn + ".router");
  if (found == use.end())
    fail(ErrorKind::usage, kWhere, "the use of \"{}.router\" is not among the {} given", ffn,
         use.size());
  if (static_cast<int64_t>(found->second.size()) != experts)
    fail(ErrorKind::usage, kWhere, "the use of {} names {} experts; it has {}", found->first,
         found->second.size(), experts);
  return found->second;
}

TensorView weighted_mean(std::span<const TensorView> tensors, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (weights.empty() || sum <= 0) return mean_of(tensors);
  std::vector<double> total;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView plain = as_float32(tensors[i]);
    const auto* values = reinterpret_cast<const float*>(plain.data.data());
    const size_t n = plain.data.size() / sizeof(float);
    total.resize(n, 0.0);
    for (size_t j = 0; j < n; ++j) total[j] += weights[i] / sum * values[j];
  }
  return from_doubles(tensors[0].name, tensors[0].dtype, tensors[0].shape, total);
}

/// Numbers of experts, the most used first, the first among equals.
std::vector<int64_t> by_use(const std::vector<double>& load) {
  std::vector<int64_t> order(load.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return load[static_cast<size_t>(a)] > load[static_cast<size_t>(b)];
  });
  return order;
}

/// What belongs to one expert plus `noise` times its own size; a single number stays.
TensorView with_noise(const TensorView& tensor, double noise, const RandomKey& key) {
  const TensorView plain = as_float32(tensor);
  const auto* values = reinterpret_cast<const float*>(plain.data.data());
  const size_t n = plain.data.size() / sizeof(float);
  if (n < 2 || noise == 0) return tensor;
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += static_cast<double>(values[i]) * values[i];
  const double size = noise * std::sqrt(squares / static_cast<double>(n));
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = values[i] + size * key.normal(i);
  return from_doubles(tensor.name, tensor.dtype, tensor.shape, out);
}

/// The checkpoint with other experts.
Checkpoint changed(Checkpoint checkpoint, const ExpertChange& change) {
  const Json json = with_experts(checkpoint.spec, change);
  return with_spec(std::move(checkpoint), json, [&](const Old& old, const spec::ParamDecl& decl) {
    return with_experts(old.at(decl.name), change);
  });
}

/// Throws for what one dense layer cannot say.
void require_plain(const Json& moe) {
  const auto refuse = [](const char* what, const std::string& expected) {
    fail(ErrorKind::usage, kWhere, "a mixture with {}; expected {}", what, expected);
  };
  if (moe.value("d_latent", 0) > 0)
    refuse("projections around its experts", "experts that read the token");
  if (!moe["shared"].is_null()) refuse("a shared layer", "experts alone");
  if (moe.value("scale_input", false)) refuse("scaled inputs", "weights on what experts make");
  if (moe.value("scale", 1.0) != 1.0) refuse("a factor on the weights", "scale 1");
  if (moe.value("zero", 0) + moe.value("identity", 0) > 0)
    refuse("zero or identity experts", "experts that compute");
}

}  // namespace

ExpertLoads read_expert_loads(const std::filesystem::path& path) {
  const std::string where = path.string();
  // the last line of a log; all of another text
  std::string text = read_text_file(path);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.pop_back();
  Json json = spec::parse_json(
      path.extension() == ".jsonl" ? text.substr(text.rfind('\n') + 1) : text, where);
  if (json.is_array() && !json.empty()) json = json[0];
  if (json.is_object() && json.contains("experts")) json = Json(json["experts"]);
  ExpertLoads loads;
  if (!json.is_object() || json.empty())
    fail(ErrorKind::file, where,
         "no use of experts; expected what generate --json prints, or a log");
  for (const auto& [router, counts] : json.items()) {
    if (!counts.is_object() || !counts.contains("load") || !counts["load"].is_array())
      fail(ErrorKind::file, where, "\"{}\": no \"load\"; expected a list of shares", router);
    for (const Json& share : counts["load"]) {
      if (!share.is_number() || !(share.get<double>() >= 0) || !std::isfinite(share.get<double>()))
        fail(ErrorKind::file, where, "\"{}\": a load of {}; expected shares from 0 on", router,
             share.dump().substr(0, 40));
      loads[router].push_back(share.get<double>());
    }
  }
  return loads;
}

Checkpoint upcycled(Checkpoint checkpoint, const UpcycleOptions& options) {
  if (options.n_experts < 1 || options.k < 1 || options.k > options.n_experts)
    fail(ErrorKind::usage, kWhere, "{} of {} experts; expected 1 to {}", options.k,
         options.n_experts, options.n_experts);
  if (options.every < 1)
    fail(ErrorKind::usage, kWhere, "in every {} layers; expected at least 1", options.every);
  Json json = checkpoint.spec_json;
  int64_t changed = 0;
  std::set<std::string> others;
  for (Json* stack : stacks_of(json)) {
    unfold(*stack);
    for (size_t i = 0; i < (*stack)["layers"].size(); ++i) {
      if ((static_cast<int64_t>(i) + 1) % options.every != 0) continue;
      for_each_ffn((*stack)["layers"][i], [&](Json& ffn) {
        if (ffn["type"] == "moe" || ffn["type"] == "chunked") {
          others.insert(ffn["type"].get<std::string>());
          return;
        }
        // one choice learns only where its weight stays as it is, and is then no copy
        ffn = {{"type", "moe"},
               {"n_experts", options.n_experts},
               {"router", {{"type", "top_k"}, {"k", options.k}, {"norm", 1}}},
               {"expert", Json(ffn)}};
        ++changed;
      });
    }
  }
  if (changed == 0)
    fail(ErrorKind::usage, kWhere, "no dense feed-forward layer to copy: found {}",
         others.empty() ? "none" : fmt::format("{}", fmt::join(others, ", ")));
  return with_spec(std::move(checkpoint), json, [&](const Old& old, const spec::ParamDecl& decl) {
    if (const TensorView* same = old.find(decl.name)) return *same;
    if (const auto [ffn, name] = within_experts(decl.name); !name.empty()) {
      const std::vector<TensorView> copies(static_cast<size_t>(options.n_experts),
                                           old.at(ffn + "." + name));
      return stacked(copies);
    }
    // a router of zeros would send every token to the first k
    const RandomKey key = RandomKey(options.seed).fold(decl.name);
    std::vector<double> values(static_cast<size_t>(decl.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.02 * key.normal(i);
    return from_doubles(decl.name, DType::f32, decl.shape, values);
  });
}

Checkpoint merged_experts(Checkpoint checkpoint, const ExpertLoads& use) {
  Json json = checkpoint.spec_json;
  int64_t changed = 0;
  for_each_mixture(json, [&](Json& ffn) {
    require_plain(ffn);
    ffn = Json(ffn["expert"]);
    ++changed;
  });
  if (changed == 0) fail(ErrorKind::usage, kWhere, "no mixture of experts to merge");
  return with_spec(std::move(checkpoint), json, [&](const Old& old, const spec::ParamDecl& decl) {
    if (const TensorView* same = old.find(decl.name)) return *same;
    // branches have any names: the stack of experts is the one that begins and ends alike
    for (size_t at = decl.name.find('.'); at != std::string::npos;
         at = decl.name.find('.', at + 1)) {
      const std::string ffn = decl.name.substr(0, at);
      const TensorView* stack = old.find(ffn + ".experts" + decl.name.substr(at));
      if (stack == nullptr) continue;
      return weighted_mean(slices(*stack), load_of(use, ffn, stack->shape[0]));
    }
    fail(ErrorKind::internal, kWhere, "the model has no {} to begin with", decl.name);
  });
}

std::map<std::string, Mixture> mixtures(const model::ModelSpec& spec) {
  Json json = model::resolve(spec);
  std::map<std::string, Mixture> out;
  for_each_mixture(json, spec, [&](const std::string& name, Json& ffn) {
    out[name] = {ffn["n_experts"], ffn["router"].value("k", int64_t{0}), no_change_reason(ffn)};
  });
  return out;
}

std::vector<int64_t> most_used(const std::vector<double>& load, int64_t n) {
  std::vector<int64_t> order = by_use(load);
  order.resize(static_cast<size_t>(n));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int64_t> grown(const std::vector<double>& load, int64_t n) {
  const std::vector<int64_t> order = by_use(load);
  std::vector<int64_t> from(load.size());
  std::iota(from.begin(), from.end(), int64_t{0});
  for (size_t i = 0; std::ssize(from) < n; ++i) from.push_back(order[i % order.size()]);
  return from;
}

Json with_experts(const model::ModelSpec& spec, const ExpertChange& change) {
  Json json = model::resolve(spec);
  size_t changed = 0;
  for_each_mixture(json, spec, [&](const std::string& name, Json& ffn) {
    const auto found = change.from.find(name);
    if (found == change.from.end()) return;
    if (const std::string reason = no_change_reason(ffn); !reason.empty())
      fail(ErrorKind::usage, kWhere, "{}: {}", name, reason);
    Json& router = ffn["router"];
    if (change.k > 0 && !router.contains("k"))
      fail(ErrorKind::usage, kWhere, "{}: router {} has no number of choices", name,
           router["type"].dump());
    const int64_t n = std::ssize(found->second),
                  k = change.k > 0 ? change.k : router.value("k", int64_t{1});
    if (k > n)
      fail(ErrorKind::usage, kWhere, "{} experts of {}, of which a token uses {}", n, name, k);
    if (change.k > 0) router["k"] = change.k;
    ffn["n_experts"] = n;
    ++changed;
  });
  if (changed == 0 && !change.from.empty())
    fail(ErrorKind::usage, kWhere, "no mixture \"{}\" in the model", change.from.begin()->first);
  return json;
}

TensorView with_experts(const TensorView& tensor, const ExpertChange& change) {
  for (const auto& [mixture, from] : change.from) {
    if (!tensor.name.starts_with(mixture + ".router.") &&
        !tensor.name.starts_with(mixture + ".experts."))
      continue;
    const std::vector<TensorView> all = slices(tensor);
    const RandomKey key = RandomKey(change.seed).fold(tensor.name);
    std::vector<bool> taken(all.size(), false);
    std::vector<TensorView> rows;
    for (size_t i = 0; i < from.size(); ++i) {
      const auto e = static_cast<size_t>(from[i]);
      require(from[i] >= 0 && e < all.size(), kWhere, "{} has no expert {}", tensor.name, from[i]);
      rows.push_back(taken[e] ? with_noise(all[e], change.noise, key.fold(i)) : all[e]);
      taken[e] = true;
    }
    return named(stacked(rows), tensor.name);
  }
  return tensor;
}

Checkpoint pruned_experts(Checkpoint checkpoint, int64_t n_experts, const ExpertLoads& use) {
  if (use.empty())
    fail(ErrorKind::usage, kWhere,
         "which experts are used is not known; expected what generate --json prints of a text");
  ExpertChange change;
  for (const auto& [name, mixture] : mixtures(checkpoint.spec)) {
    if (n_experts < 1 || n_experts > mixture.n_experts)
      fail(ErrorKind::usage, kWhere, "{} experts to keep; expected 1 to {}", n_experts,
           mixture.n_experts);
    change.from[name] = most_used(load_of(use, name, mixture.n_experts), n_experts);
  }
  if (change.from.empty()) fail(ErrorKind::usage, kWhere, "no mixture of experts to prune");
  return changed(std::move(checkpoint), change);
}

Checkpoint grown_experts(Checkpoint checkpoint,
                         const GrowOptions& options,
                         const ExpertLoads& use) {
  if (use.empty())
    fail(ErrorKind::usage, kWhere,
         "which experts are used is not known; expected what generate --json prints of a text");
  ExpertChange change;
  change.k = options.k;
  change.noise = options.noise;
  change.seed = options.seed;
  for (const auto& [name, mixture] : mixtures(checkpoint.spec))
    if (mixture.n_experts < options.n_experts)
      change.from[name] = grown(load_of(use, name, mixture.n_experts), options.n_experts);
  if (change.from.empty())
    fail(ErrorKind::usage, kWhere, "no mixture of fewer than {} experts to grow",
         options.n_experts);
  return changed(std::move(checkpoint), change);
}

}  // namespace tessera::convert
