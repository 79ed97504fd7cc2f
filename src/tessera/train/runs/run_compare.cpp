// What runs have in common and where they differ: keys of their recipes, costs, seeds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/model/plan.h"
#include "tessera/nn/registry.h"
#include "tessera/train/runs/run_report.h"

namespace tessera::train {
namespace {

using spec::Json;
using Flat = std::map<std::string, std::string>;

void flatten(const Json& json, const std::string& path, Flat& out) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items())
      flatten(value, path.empty() ? key : path + "." + key, out);
  } else if (json.is_array() && !json.empty() && json[0].is_object()) {
    for (size_t i = 0; i < json.size(); ++i) flatten(json[i], fmt::format("{}[{}]", path, i), out);
  } else {
    out[path] = json.is_string() ? json.get<std::string>() : json.dump();
  }
}

Flat flat(const Json& json) {
  Flat out;
  flatten(json, "", out);
  return out;
}

/// A value as it is in force, else as it was written: specs are written in short forms.
std::string value_of(const Flat& resolved, const Flat& written, const std::string& key) {
  if (const auto found = resolved.find(key); found != resolved.end() && !key.starts_with("spec."))
    return found->second;
  const auto found = written.find(key);
  return found == written.end() ? "" : found->second;
}

int64_t count_at(const Json& json, const char* pointer) {
  const Json::json_pointer key(pointer);
  return json.is_object() && json.contains(key) && json[key].is_number_integer()
             ? json[key].get<int64_t>()
             : 0;
}

/// Keys that change nothing of what a run learns.
bool steers(const std::string& key) {
  for (const char* one : {"train.threads", "train.log_every", "checkpoint.", "watch."})
    if (key.starts_with(one)) return true;
  return false;
}

/// All of a run's recipe but its seed.
std::string but_for_seed(const RunRecord& run) {
  std::string out;
  for (const auto& [key, value] : flat(run.recipe))
    if (key != "train.seed" && !steers(key)) out += key + "=" + value + "\n";
  return out;
}

Spread spread_of(const std::string& name, const std::vector<double>& values) {
  Spread out{name};
  for (const double value : values) out.mean += value / static_cast<double>(values.size());
  for (const double value : values) out.deviation += (value - out.mean) * (value - out.mean);
  out.deviation =
      values.size() < 2 ? 0 : std::sqrt(out.deviation / static_cast<double>(values.size() - 1));
  return out;
}

}  // namespace

std::vector<KeyDifference> differences(const std::vector<RunRecord>& runs) {
  std::vector<Flat> resolved, written;
  std::set<std::string> keys;
  for (const RunRecord& run : runs) {
    resolved.push_back(flat(run.recipe));
    // a run of before recipes were kept as written: all of its keys
    written.push_back(run.written.is_null() ? resolved.back() : flat(run.written));
    for (const auto& [key, value] : written.back()) keys.insert(key);
  }
  std::vector<KeyDifference> out;
  for (const std::string& key : keys) {
    KeyDifference difference{key, {}};
    for (size_t i = 0; i < runs.size(); ++i)
      difference.values.push_back(value_of(resolved[i], written[i], key));
    if (std::adjacent_find(difference.values.begin(), difference.values.end(),
                           std::not_equal_to<>()) != difference.values.end())
      out.push_back(std::move(difference));
  }
  return out;
}

RunCosts costs_of(const RunRecord& run) {
  RunCosts out;
  if (!run.recipe.is_object() || !run.recipe.contains("spec")) return out;
  try {
    nn::register_mechanisms();
    const model::ModelSpec spec = model::read_model_spec(run.recipe["spec"]);
    const int64_t length = std::max<int64_t>(1, count_at(run.recipe, "/train/length"));
    const model::Plan plan = model::make_plan(spec, length);
    out.parameters = plan.parameters;
    // forward and twice as much back, of every token of every window
    const int64_t tokens = length * count_at(run.recipe, "/train/batch") *
                           std::max<int64_t>(1, count_at(run.recipe, "/train/accumulate"));
    if (!run.lines.empty() && run.reads_windows())
      out.flops = 3 * plan.flops_per_token * static_cast<double>(tokens * run.lines.back().step);
  } catch (const Error&) {
    // the recipe of another version; the rest of the row is there
  }
  return out;
}

std::vector<SeedGroup> seed_groups(const std::vector<RunRecord>& runs) {
  std::map<std::string, SeedGroup> by_recipe;
  std::vector<std::string> order;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string key = but_for_seed(runs[i]);
    if (by_recipe.count(key) == 0) order.push_back(key);
    by_recipe[key].runs.push_back(i);
  }
  std::vector<SeedGroup> out;
  for (const std::string& key : order) {
    SeedGroup group = by_recipe[key];
    std::set<int64_t> seeds;
    for (const size_t i : group.runs) seeds.insert(count_at(runs[i].recipe, "/train/seed"));
    if (seeds.size() < 2) continue;
    std::map<std::string, std::vector<double>> values;
    for (const size_t i : group.runs) {
      if (!runs[i].lines.empty()) values["loss"].push_back(runs[i].lines.back().loss);
      const LogLine* best = runs[i].best();
      if (best == nullptr) continue;
      values["best valid"].push_back(*best->valid_loss);
      if (best->accuracy) values["accuracy"].push_back(*best->accuracy);
      for (const auto& [name, score] : best->scores)
        if (name != "accuracy") values[name].push_back(score);
    }
    for (const auto& [name, all] : values)
      if (all.size() == group.runs.size()) group.spreads.push_back(spread_of(name, all));
    out.push_back(std::move(group));
  }
  return out;
}

}  // namespace tessera::train
