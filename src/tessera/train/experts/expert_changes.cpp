#include "tessera/train/experts/expert_changes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/rng.h"

namespace tessera::train {
namespace {

std::vector<double> picked(const std::vector<double>& values, const std::vector<int64_t>& at) {
  std::vector<double> out;
  for (const int64_t i : at) out.push_back(values[static_cast<size_t>(i)]);
  return out;
}

/// Experts that are used enough, at least `keep` of them.
std::vector<int64_t> survivors(const std::vector<double>& load, double below, int64_t keep) {
  const double even =
      std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
  const int64_t used =
      std::count_if(load.begin(), load.end(), [&](double n) { return n >= below * even; });
  return convert::most_used(load,
                            std::clamp(used, std::min(keep, std::ssize(load)), std::ssize(load)));
}

}  // namespace

Json ExpertCounts::to_json() const {
  return {{"updates", updates}, {"by_router", by_router}};
}

ExpertCounts ExpertCounts::of(const Json& json, const std::string& where) {
  const auto refuse = [&] {
    fail(ErrorKind::file, where, "\"expert_counts\" holds no counts of experts by router");
  };
  const auto is_count = [](const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
  };
  if (!json.is_object() || !json.contains("updates") || !json["updates"].is_number_integer() ||
      json["updates"] < 0 || !json.contains("by_router") || !json["by_router"].is_object())
    refuse();
  ExpertCounts out;
  out.updates = json["updates"];
  for (const auto& [router, counts] : json["by_router"].items()) {
    if (!counts.is_array() || !std::all_of(counts.begin(), counts.end(), is_count)) refuse();
    out.by_router[router] = counts.get<std::vector<double>>();
  }
  return out;
}

std::optional<convert::ExpertChange> due_change(const ExpertsRecipe& recipe,
                                                const model::ModelSpec& spec,
                                                int64_t step,
                                                uint64_t seed,
                                                ExpertCounts& counts) {
  const auto grow = std::find_if(recipe.grow.begin(), recipe.grow.end(),
                                 [&](const GrowRecipe& one) { return one.at == step; });
  const bool grows = grow != recipe.grow.end(),
             judges = recipe.remove && counts.updates >= recipe.remove->after;
  if (!grows && !judges) return std::nullopt;
  convert::ExpertChange change;
  change.seed = RandomKey(seed).fold("experts").fold(static_cast<uint64_t>(step)).value();
  if (grows) change.noise = grow->noise, change.k = grow->k;
  for (const auto& [name, mixture] : convert::mixtures(spec)) {
    std::vector<double> load = counts.by_router[name + ".router"];
    // of a layer that no token reached
    load.resize(static_cast<size_t>(mixture.n_experts), 0.0);
    std::vector<int64_t> from(load.size());
    std::iota(from.begin(), from.end(), int64_t{0});
    if (judges)
      from = survivors(load, recipe.remove->below, std::max(recipe.remove->keep, mixture.k));
    bool differs = std::ssize(from) != mixture.n_experts;
    if (grows) {
      const std::vector<int64_t> more =
          convert::grown(picked(load, from), std::max(grow->to, std::ssize(from)));
      differs = differs || more.size() > from.size() || (grow->k > 0 && grow->k != mixture.k);
      std::vector<int64_t> both;
      for (const int64_t i : more) both.push_back(from[static_cast<size_t>(i)]);
      from = std::move(both);
    }
    if (differs) change.from[name] = std::move(from);
  }
  if (judges || !change.from.empty()) counts = {};
  if (change.from.empty()) return std::nullopt;
  return change;
}

Json describe(const convert::ExpertChange& change, const model::ModelSpec& before) {
  Json out = Json::object();
  const auto mixtures = convert::mixtures(before);
  for (const auto& [name, from] : change.from) {
    const convert::Mixture& was = mixtures.at(name);
    std::vector<int64_t> times(static_cast<size_t>(was.n_experts), 0);
    Json removed = Json::array(), copied = Json::array();
    for (const int64_t e : from)
      if (++times[static_cast<size_t>(e)] > 1) copied.push_back(e);
    for (size_t e = 0; e < times.size(); ++e)
      if (times[e] == 0) removed.push_back(e);
    Json& json = out[name];
    json = {{"from", was.n_experts}, {"to", from.size()}};
    if (!removed.empty()) json["removed"] = removed;
    if (!copied.empty()) json["copied"] = copied;
    if (change.k > 0 && change.k != was.k) json["k"] = change.k;
  }
  return out;
}

std::string text_of_changes(const Json& described) {
  constexpr size_t kShown = 4;
  const auto list = [](const Json& numbers) {
    return fmt::format("{}", fmt::join(numbers.get<std::vector<int64_t>>(), ", "));
  };
  std::string text;
  size_t shown = 0;
  for (const auto& [name, one] : described.items()) {
    if (shown++ == kShown) break;
    text += fmt::format("{}{} {} -> {} experts", text.empty() ? "" : "; ", name,
                        one["from"].get<int64_t>(), one["to"].get<int64_t>());
    if (one.contains("removed")) text += ", without " + list(one["removed"]);
    if (one.contains("copied")) text += ", copies of " + list(one["copied"]);
    if (one.contains("k")) text += fmt::format(", {} a token", one["k"].get<int64_t>());
  }
  if (described.size() > kShown) text += fmt::format("; and {} more", described.size() - kShown);
  return text;
}

}  // namespace tessera::train
