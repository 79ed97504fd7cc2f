#include "tessera/train/study/study.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/names.h"
#include "tessera/train/recipe/aliases.h"
#include "tessera/train/study/rate_search.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "compare";

Json read_with_comments(const fs::path& path) {
  spec::JsonLimits limits;
  limits.comments = true;
  return spec::read_json_file(path, limits);
}

fs::path place_of(const fs::path& folder, const Json& path, const std::string& where) {
  if (!path.is_string())
    fail(ErrorKind::spec, where, "found {}; expected the path of a file", spec::kind_of(path));
  return folder / path.get<std::string>();
}

/// Calls `read`; what it throws names the entry.
template <class Read>
auto of_entry(const std::string& name, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(error.kind(), kWhere, fmt::format("entry \"{}\": {}", name, error.what()));
  }
}

/// Characters that every file system takes.
std::string file_name(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                   std::string_view("._+-=").find(c) != std::string_view::npos
               ? c
               : '_';
  return out;
}

/// An entry as it is written, or one value of a generator.
struct WrittenEntry {
  std::string name;
  Json json;                           // "spec", "recipe"
  std::vector<std::string> overrides;  // of the recipe
};

std::string stem_of(const Json& json) {
  for (const char* key : {"spec", "recipe"})
    if (json.contains(key) && json[key].is_string())
      return fs::path(json[key].get<std::string>()).stem().string();
  return "";
}

/// The entries that one element of the list expands to.
std::vector<WrittenEntry> expanded(const Json& json, const std::string& where) {
  spec::check_keys(json, {"name", "spec", "recipe", "set", "over", "values"}, where);
  const auto text_at = [&](const char* key) {
    if (!json.contains(key)) return std::string();
    if (!json[key].is_string())
      fail(ErrorKind::spec, fmt::format("{}.{}", where, key), "found {}; expected a string",
           spec::kind_of(json[key]));
    return json[key].get<std::string>();
  };
  WrittenEntry entry{text_at("name"), json, {}};
  if (json.contains("set")) {
    if (!json["set"].is_array())
      fail(ErrorKind::spec, where + ".set", "found {}; expected a list of \"path.to.key=value\"",
           spec::kind_of(json["set"]));
    for (const Json& one : json["set"]) {
      if (!one.is_string())
        fail(ErrorKind::spec, where + ".set", "found {}; expected \"path.to.key=value\"",
             spec::kind_of(one));
      entry.overrides.push_back(one.get<std::string>());
    }
  }
  if (entry.name.empty()) entry.name = stem_of(json);
  const std::string over = text_at("over");
  if (over.empty() != !json.contains("values"))
    fail(ErrorKind::spec, where, "\"over\" and \"values\" belong together; expected both");
  if (over.empty()) {
    if (entry.name.empty()) fail(ErrorKind::spec, where, "\"name\" is missing");
    return {entry};
  }
  if (!json["values"].is_array() || json["values"].empty())
    fail(ErrorKind::spec, where + ".values", "expected a list of values of \"{}\"", over);
  std::vector<WrittenEntry> out;
  const std::string last = over.substr(over.rfind('.') + 1);
  for (const Json& value : json["values"]) {
    WrittenEntry one = entry;
    one.overrides.push_back(over + "=" + value.dump());
    one.name = fmt::format("{}{}{}={}", entry.name, entry.name.empty() ? "" : ",", last,
                           value.is_string() ? value.get<std::string>() : value.dump());
    out.push_back(std::move(one));
  }
  return out;
}

/// The recipe of an entry, not yet solved.
Json recipe_json(const WrittenEntry& entry,
                 const std::optional<Json>& base,
                 const fs::path& folder) {
  const Json& json = entry.json;
  if (!json.contains("recipe") && !base)
    fail(ErrorKind::spec, "study", "\"base\" is missing; expected the path of a recipe");
  Json recipe =
      json.contains("recipe") ? merged_recipe(place_of(folder, json["recipe"], "recipe")) : *base;
  if (json.contains("spec")) {
    const Json spec = json["spec"].is_string()
                          ? read_with_comments(place_of(folder, json["spec"], "spec"))
                          : json["spec"];
    if (!spec.is_object())
      fail(ErrorKind::spec, "spec", "found {}; expected a spec, or changes to that of the base",
           spec::kind_of(spec));
    if (spec.contains("tessera"))
      recipe["spec"] = spec;
    else
      recipe["spec"].merge_patch(spec);
  }
  for (const std::string& assignment : entry.overrides) model::apply_override(recipe, assignment);
  use_kept_names(recipe, true);
  return recipe;
}

int64_t integer_at(const Json& json, const char* section, const char* key) {
  return json.contains(section) && json[section].is_object() && json[section].contains(key) &&
                 json[section][key].is_number_integer()
             ? json[section][key].get<int64_t>()
             : 0;
}

/// Steps of a recipe, with its warm-up in proportion.
void set_steps(Json& recipe, int64_t steps) {
  const int64_t before = integer_at(recipe, "train", "steps"),
                warmup = integer_at(recipe, "schedule", "warmup");
  if (before > 0 && warmup > 0 && before != steps)
    recipe["schedule"]["warmup"] =
        std::clamp<int64_t>(std::llround(static_cast<double>(warmup) * static_cast<double>(steps) /
                                         static_cast<double>(before)),
                            1, steps);
  recipe["train"]["steps"] = steps;
}

bool is_tied(const model::ModelSpec& spec) {
  const auto* head = dynamic_cast<const nn::HeadConfig*>(spec.head.config.get());
  return head != nullptr && head->tied();
}

/// What all losses of a comparison presuppose.
void check_same_tokens(const std::string& name, const Recipe& recipe, const Recipe& first) {
  if (recipe.data.tokenizer() != first.data.tokenizer())
    fail(ErrorKind::usage, kWhere,
         "entry \"{}\": tokenizer \"{}\", and the first has \"{}\"; losses per token need the same",
         name, recipe.data.tokenizer(), first.data.tokenizer());
  if (recipe.spec.vocab != first.spec.vocab)
    fail(ErrorKind::usage, kWhere,
         "entry \"{}\": vocab {}, and the first has {}; losses per token need the same", name,
         recipe.spec.vocab, first.spec.vocab);
  if (is_tied(recipe.spec) != is_tied(first.spec))
    fail(ErrorKind::usage, kWhere,
         "entry \"{}\": its head is {}, that of the first is {}; expected the same", name,
         is_tied(recipe.spec) ? "tied" : "not tied", is_tied(first.spec) ? "tied" : "not tied");
}

model::PlanCost cost_of(EqualBy by) {
  return by == EqualBy::flops         ? model::PlanCost::mean_flops
         : by == EqualBy::state_bytes ? model::PlanCost::state_bytes
                                      : model::PlanCost::body_parameters;
}

int64_t steps_of_budget(const BudgetRecipe& budget, const StudyEntry& entry, int64_t own) {
  const auto tokens = static_cast<double>(entry.tokens_per_step);
  const double step_flops = 3 * entry.flops * tokens,
               steps = budget.steps    ? static_cast<double>(*budget.steps)
                       : budget.tokens ? *budget.tokens / tokens
                       : budget.flops  ? *budget.flops / step_flops
                                       : static_cast<double>(own);
  if (!(steps >= 1))
    fail(ErrorKind::usage, "budget", "{:.6g} {} are less than one step of {:.6g}; expected more",
         budget.tokens ? *budget.tokens : budget.flops.value_or(0),
         budget.tokens ? "tokens" : "FLOPs", budget.tokens ? tokens : step_flops);
  constexpr double kMostSteps = 1e12;
  if (steps > kMostSteps)
    fail(ErrorKind::usage, "budget", "{:.3g} steps; expected at most {:g}", steps, kMostSteps);
  // a budget of whole steps is not cut by rounding
  return static_cast<int64_t>(std::floor(steps * (1 + 1e-12)));
}

std::vector<int64_t> seeds_of(const Json& json) {
  std::vector<int64_t> seeds;
  constexpr int64_t kMost = 1000;
  if (json.is_number_integer()) {
    const auto count = json.get<int64_t>();
    if (count < 1 || count > kMost)
      fail(ErrorKind::spec, "seeds", "found {}; expected 1 to {}, or a list of seeds", count,
           kMost);
    for (int64_t seed = 1; seed <= count; ++seed) seeds.push_back(seed);
    return seeds;
  }
  if (!json.is_array() || json.empty())
    fail(ErrorKind::spec, "seeds", "found {}; expected a number, or a list of seeds",
         spec::kind_of(json));
  for (const Json& one : json) {
    if (!one.is_number_integer() || one.get<int64_t>() < 0)
      fail(ErrorKind::spec, "seeds", "found {}; expected integers from 0", one.dump());
    if (std::count(seeds.begin(), seeds.end(), one.get<int64_t>()) > 0)
      fail(ErrorKind::spec, "seeds", "{} twice; expected different seeds", one.dump());
    seeds.push_back(one.get<int64_t>());
  }
  return seeds;
}

void read_rates(const Json& json, Study& study) {
  if (!json.is_array()) {
    spec::detail::read_value(json, study.rates, {}, spec::Scope().at("learning_rates"));
    return;
  }
  for (const Json& one : json) {
    if (!one.is_number())
      fail(ErrorKind::spec, "learning_rates", "found {}; expected \"tune\", \"shared\" or numbers",
           spec::kind_of(one));
    study.rate_grid.push_back(one.get<double>());
  }
  RateSearch(study.rate_grid);  // refuses bad ones
  if (study.rate_grid.size() == 1) study.rates = RateMode::shared;
}

std::vector<ClaimRecipe> read_claims(const Json& json, const EvaluateRecipe& evaluate) {
  if (!json.is_array())
    fail(ErrorKind::spec, "claims", "found {}; expected a list of claims", spec::kind_of(json));
  std::vector<ClaimRecipe> claims;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string where = fmt::format("claims[{}]", i);
    claims.push_back(spec::read_struct<ClaimRecipe>(json[i], spec::Scope().at(where)));
    const int64_t length = claims.back().length;
    const std::vector<int64_t>& lengths = evaluate.lengths;
    if (length > 0 && std::find(lengths.begin(), lengths.end(), length) == lengths.end())
      fail(ErrorKind::spec, where, "length {} is not evaluated; expected one of evaluate.lengths",
           length);
  }
  return claims;
}

/// Size and steps of an entry from its recipe; solves for those that it should have.
StudyEntry planned(const WrittenEntry& written, Json recipe, Study& study) {
  StudyEntry entry{.name = written.name, .recipe = std::move(recipe)};
  const int64_t own_steps = integer_at(entry.recipe, "train", "steps");
  const BudgetRecipe& budget = study.budget;
  if (own_steps == 0 && (budget.tokens || budget.steps || budget.flops))
    entry.recipe["train"]["steps"] = 1;  // the budget sets them
  Recipe read = read_recipe(entry.recipe, "");
  if (read.stop)
    fail(ErrorKind::usage, "stop", "early stopping ends runs at different budgets; remove it");
  if (!read.data.has_valid())
    fail(ErrorKind::usage, "data", "no validation data; expected \"valid\" or \"valid_fraction\"");
  entry.length = read.train.length;
  entry.tokens_per_step = read.train.batch * read.train.accumulate * read.train.length;
  entry.rate = study.rate_grid.size() == 1 ? study.rate_grid[0] : read.optimizer.lr;
  const EqualRecipe& equal = study.equal;
  const int64_t context =
      equal.by == EqualBy::state_bytes && equal.context > 0 ? equal.context : entry.length;
  if (equal.by != EqualBy::none) {
    const model::PlanCost cost = cost_of(equal.by);
    entry.amount = model::cost_of(read.spec, cost, context);
    if (study.amount == 0) study.amount = equal.value.value_or(entry.amount);
    if (!equal.key.empty() && entry.amount != study.amount) {
      if (!entry.recipe.contains("spec"))
        fail(ErrorKind::usage, "equal",
             "the spec is that of the model in \"init\", which is not "
             "changed; expected \"by\": \"none\"");
      const model::Solution found =
          model::solve(entry.recipe["spec"], {.key = equal.key,
                                              .cost = cost,
                                              .target = study.amount,
                                              .multiple = equal.multiple_of,
                                              .tolerance = equal.tolerance,
                                              .context = context});
      entry.recipe["spec"] = found.spec;
      entry.solved = found.value;
      entry.amount = found.cost;
      read = read_recipe(entry.recipe, "");
    }
  }
  entry.parameters =
      static_cast<int64_t>(model::cost_of(read.spec, model::PlanCost::parameters, entry.length));
  entry.body_parameters = static_cast<int64_t>(
      model::cost_of(read.spec, model::PlanCost::body_parameters, entry.length));
  entry.flops = model::cost_of(read.spec, model::PlanCost::mean_flops, entry.length);
  entry.state_bytes =
      static_cast<int64_t>(model::cost_of(read.spec, model::PlanCost::state_bytes, context));
  entry.steps = steps_of_budget(budget, entry, own_steps);
  if (own_steps > 0)
    set_steps(entry.recipe, entry.steps);
  else
    entry.recipe["train"]["steps"] = entry.steps;
  return entry;
}

}  // namespace

int64_t StudyEntry::steps_of(double part) const {
  return std::max<int64_t>(1, std::llround(part * static_cast<double>(steps)));
}

size_t Study::index_of(const std::string& name) const {
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].name == name) return i;
  return 0;
}

int64_t Study::common_steps() const {
  int64_t steps = entries.at(0).steps;
  for (const StudyEntry& entry : entries) steps = std::min(steps, entry.steps);
  return steps;
}

std::vector<double> Study::rates_of(const StudyEntry& entry) const {
  return rate_grid.empty() ? rates_around(entry.rate) : rate_grid;
}

Study read_study(const Json& json, const fs::path& folder, size_t fewest) {
  nn::register_mechanisms();
  spec::check_keys(json,
                   {"base", "entries", "equal", "budget", "learning_rates", "seeds", "reference",
                    "evaluate", "claims"},
                   "study");
  Study study;
  const spec::Scope top;
  const auto section = [&](const char* key) { return json.value(key, Json::object()); };
  study.equal = spec::read_struct<EqualRecipe>(section("equal"), top.at("equal"));
  study.budget = spec::read_struct<BudgetRecipe>(section("budget"), top.at("budget"));
  study.evaluate = spec::read_struct<EvaluateRecipe>(section("evaluate"), top.at("evaluate"));
  for (const int64_t length : study.evaluate.lengths)
    if (length < 1)
      fail(ErrorKind::spec, "evaluate.lengths", "found {}; expected tokens, from 1", length);
  const BudgetRecipe& budget = study.budget;
  if ((budget.tokens ? 1 : 0) + (budget.steps ? 1 : 0) + (budget.flops ? 1 : 0) > 1)
    fail(ErrorKind::spec, "budget", "several budgets; expected one of tokens, steps and flops");
  study.seeds = seeds_of(json.value("seeds", Json({1, 2, 3})));
  read_rates(json.value("learning_rates", Json("tune")), study);
  std::optional<Json> base;
  if (json.contains("base")) base = merged_recipe(place_of(folder, json["base"], "base"));
  if (!json.contains("entries") || !json["entries"].is_array())
    fail(ErrorKind::spec, "entries", "found {}; expected a list of entries",
         spec::kind_of(json.value("entries", Json())));
  std::vector<WrittenEntry> written;
  for (size_t i = 0; i < json["entries"].size(); ++i)
    for (WrittenEntry& entry : expanded(json["entries"][i], fmt::format("entries[{}]", i))) {
      for (const WrittenEntry& other : written)
        if (file_name(other.name) == file_name(entry.name))
          fail(ErrorKind::usage, kWhere, "two entries are named \"{}\"; expected different names",
               entry.name);
      written.push_back(std::move(entry));
    }
  if (written.size() < fewest)
    fail(ErrorKind::usage, kWhere,
         "{} entr{}; expected two or more to compare: several recipes, or a study with \"entries\"",
         written.size(), written.size() == 1 ? "y" : "ies");
  std::optional<Recipe> first;
  for (const WrittenEntry& one : written)
    study.entries.push_back(
        of_entry(one.name, [&] { return planned(one, recipe_json(one, base, folder), study); }));
  for (const StudyEntry& entry : study.entries) {
    const Recipe recipe = of_entry(entry.name, [&] { return read_recipe(entry.recipe, ""); });
    if (first) check_same_tokens(entry.name, recipe, *first);
    if (!first) first = recipe;
  }
  study.reference = json.contains("reference") && json["reference"].is_string()
                        ? json["reference"].get<std::string>()
                        : study.entries.front().name;
  std::vector<std::string> names;
  for (const StudyEntry& entry : study.entries) names.push_back(entry.name);
  const auto check_name = [&](const std::string& where, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail(ErrorKind::spec, where, "no entry is named \"{}\"{}", name,
           spec::did_you_mean(name, names));
  };
  check_name("reference", study.reference);
  study.claims = read_claims(json.value("claims", Json::array()), study.evaluate);
  for (size_t i = 0; i < study.claims.size(); ++i)
    for (const std::string& name : {study.claims[i].better, study.claims[i].than})
      check_name(fmt::format("claims[{}]", i), name);
  return study;
}

StudyFile study_file(const std::vector<fs::path>& files, const Json& changes) {
  require(!files.empty(), kWhere, "no file");
  Json json = read_with_comments(files.front());
  fs::path folder = files.front().parent_path();
  if (!json.is_object() || (!json.contains("entries") && !json.contains("search"))) {
    // recipes, and specs that the first recipe trains
    json = Json{{"base", fs::absolute(files.front()).string()}, {"entries", Json::array()}};
    folder = "";
    for (const fs::path& file : files) {
      const Json one = read_with_comments(file);
      const bool is_spec = one.is_object() && one.contains("tessera");
      if (is_spec && json["entries"].empty())
        fail(ErrorKind::usage, kWhere,
             "{} is a spec; expected a study, or a recipe before the specs that it trains",
             file.string());
      json["entries"].push_back({{"name", file.stem().string()},
                                 {is_spec ? "spec" : "recipe", fs::absolute(file).string()}});
    }
  } else if (files.size() > 1) {
    fail(ErrorKind::usage, kWhere, "{} is a study; expected no other file with it",
         files.front().string());
  }
  json.merge_patch(changes);
  return {std::move(json), std::move(folder)};
}

Study load_study(const std::vector<fs::path>& files, const Json& changes) {
  const StudyFile file = study_file(files, changes);
  return read_study(file.json, file.folder);
}

Json to_json(const Study& study) {
  Json json = {{"reference", study.reference}, {"seeds", study.seeds}, {"entries", Json::array()}};
  for (const StudyEntry& entry : study.entries) {
    Json one = {{"name", entry.name}, {"steps", entry.steps}};
    if (entry.solved) one["solved"] = *entry.solved;
    one["recipe"] = entry.recipe;
    json["entries"].push_back(std::move(one));
  }
  return json;
}

Recipe recipe_of(const StudyEntry& entry, const StudyRun& run) {
  Json json = entry.recipe;
  set_steps(json, run.steps);
  json["optimizer"]["lr"] = run.rate;
  if (!json["checkpoint"].is_object()) json["checkpoint"] = Json::object();
  // after the keys that may be new: they move the others
  Json& train = json["train"];
  train["seed"] = run.seed;
  constexpr int64_t kPoints = 10, kSaves = 10, kPasses = 16;
  const auto every = [&](int64_t parts) {
    return std::max<int64_t>(1, (run.steps + parts - 1) / parts);
  };
  train["eval_every"] = run.curve ? every(kPoints) : 0;
  if (integer_at(json, "train", "eval_batches") == 0) train["eval_batches"] = kPasses;
  json["checkpoint"]["every"] = every(kSaves);
  json["checkpoint"]["keep"] = 1;
  return read_recipe(std::move(json), "");
}

std::string name_of(const StudyEntry& entry, const StudyRun& run) {
  const std::string seed = fmt::format("seed={}", run.seed);
  const std::string kind = run.curve ? seed : run.seed == kSearchSeed ? "search" : "part," + seed;
  return fmt::format("{}/{},lr={:g},steps={}", file_name(entry.name), kind, run.rate, run.steps);
}

}  // namespace tessera::train
