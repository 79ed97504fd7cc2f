#include "tessera/train/study/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/names.h"

namespace tessera::train {
namespace {

constexpr const char* kSearch = "search";
constexpr double kMostLayouts = 1e9;
constexpr int64_t kMostLayers = 4096;

/// A choice of a candidate: a layer's mixer, or a value of a key.
struct Choice {
  std::string key;                                   // "" = a mixer of the pattern
  std::vector<std::pair<std::string, Json>> values;  // name and value
};

/// The layers of a spec, one element for each, without "repeat", "cycles" and "n_layers".
std::vector<Json> layers_of(const Json& spec) {
  if (!spec.is_object() || !spec.contains("layers") || !spec["layers"].is_array())
    fail(ErrorKind::usage, kSearch, "the base has no \"spec\" with \"layers\"; expected one");
  std::vector<Json> once;
  const auto count_at = [](const Json& json, const char* key, int64_t without) {
    const int64_t count =
        json.contains(key) && json[key].is_number_integer() ? json[key].get<int64_t>() : without;
    if (count < 0 || count > kMostLayers)
      fail(ErrorKind::spec, kSearch, "\"{}\" is {}; expected 0 to {}", key, count, kMostLayers);
    return count;
  };
  for (Json layer : spec["layers"]) {
    if (!layer.is_object() || layer.contains("branches"))
      fail(ErrorKind::usage, kSearch,
           "a layer of several branches has no single mixer; expected layers of a mixer and a "
           "feed-forward part");
    const int64_t repeat = count_at(layer, "repeat", 1);
    layer.erase("repeat");
    once.insert(once.end(), static_cast<size_t>(repeat), layer);
  }
  std::vector<Json> all;
  for (int64_t cycle = count_at(spec, "cycles", 1); cycle > 0; --cycle)
    all.insert(all.end(), once.begin(), once.end());
  if (const int64_t cut = count_at(spec, "n_layers", 0); cut > 0)
    all.resize(std::min(all.size(), static_cast<size_t>(cut)));
  if (all.empty()) fail(ErrorKind::usage, kSearch, "the base has no layers; expected one or more");
  return all;
}

/// A mixer as a part: as it is, or a type, which takes the base's own part or its heads.
Json mixer_of(const Json& written, const std::string& name, const Json& own) {
  if (written.is_object()) return written;
  if (!written.is_string())
    fail(ErrorKind::spec, fmt::format("search.mixers.{}", name),
         "found {}; expected a mixer, or the type of one", spec::kind_of(written));
  const auto type = written.get<std::string>();
  if (own.is_object() && own.value("type", Json()) == type) return own;
  const spec::Mechanism* mechanism = spec::find_mechanism(spec::Slot::mixer, type);
  if (mechanism == nullptr) {
    std::vector<std::string> names;
    for (const spec::Mechanism& one : spec::mechanisms())
      if (one.slot == spec::Slot::mixer) names.push_back(one.name);
    fail(ErrorKind::spec, fmt::format("search.mixers.{}", name), "no mixer is named \"{}\"{}", type,
         spec::did_you_mean(type, names));
  }
  Json mixer = {{"type", type}};
  for (const spec::FieldDoc& field : mechanism->fields())
    if (std::string_view(field.name) == "n_heads" && own.is_object() && own.contains("n_heads"))
      mixer["n_heads"] = own["n_heads"];
  return mixer;
}

std::string name_of_choice(const std::string& key, const Json& value) {
  const std::string text =
      value.is_string() ? value.get<std::string>()
      : value.is_object() && value.contains("type") && value["type"].is_string()
          ? value["type"].get<std::string>()
          : value.dump();
  return key.substr(key.rfind('.') + 1) + "=" + text;
}

/// The choices of "search", the pattern's mixers first.
std::vector<Choice> choices_of(const Json& json, const Json& spec, size_t period) {
  std::vector<Choice> out;
  if (json.contains("mixers")) {
    if (!json["mixers"].is_object() || json["mixers"].size() < 2)
      fail(ErrorKind::spec, "search.mixers",
           "expected an object of two or more mixers by name, such as {{\"a\": \"attention\", "
           "\"g\": \"gated_delta_net\"}}");
    const Json first = layers_of(spec).front();
    const Json own = first.contains("mixer") ? first["mixer"] : spec.value("mixer", Json());
    Choice mixers;
    for (const auto& [name, mixer] : json["mixers"].items())
      mixers.values.emplace_back(name, mixer_of(mixer, name, own));
    out.assign(period, mixers);
  }
  if (json.contains("over")) {
    if (!json["over"].is_object())
      fail(ErrorKind::spec, "search.over", "found {}; expected an object of keys and lists",
           spec::kind_of(json["over"]));
    for (const auto& [key, values] : json["over"].items()) {
      if (!values.is_array() || values.empty())
        fail(ErrorKind::spec, "search.over", "expected a list of values of \"{}\"", key);
      Choice choice{.key = key, .values = {}};
      for (const Json& value : values)
        choice.values.emplace_back(name_of_choice(key, value), value);
      out.push_back(std::move(choice));
    }
  }
  return out;
}

/// Numbers of the combinations that are candidates: all, or the first and others at random.
std::vector<uint64_t> chosen(double combinations, int64_t most) {
  std::vector<uint64_t> out;
  if (combinations <= static_cast<double>(most)) {
    for (uint64_t i = 0; i < static_cast<uint64_t>(combinations); ++i) out.push_back(i);
    return out;
  }
  const RandomKey key = RandomKey(0).fold("layout_search");
  std::set<uint64_t> numbers{0};
  for (uint64_t draw = 0; std::ssize(numbers) < most; ++draw)
    numbers.insert((uint64_t{key.bits(draw)} * static_cast<uint64_t>(combinations)) >> 32);
  out.assign(numbers.begin(), numbers.end());
  return out;
}

/// Entry of a candidate: the digits of its number are its choices, of the first layer the lowest.
Json entry_of(uint64_t number,
              const std::vector<Choice>& choices,
              const Json& spec,
              const std::vector<Json>& layers) {
  std::vector<size_t> digits;
  for (const Choice& choice : choices) {
    digits.push_back(static_cast<size_t>(number % choice.values.size()));
    number /= choice.values.size();
  }
  Json entry = {{"name", ""}, {"set", Json::array()}};
  std::string layout, others;
  std::vector<Json> pattern;
  for (size_t c = 0; c < choices.size(); ++c) {
    const auto& [name, value] = choices[c].values[digits[c]];
    if (choices[c].key.empty()) {
      layout += (layout.empty() ? "" : "-") + name;
      pattern.push_back(value);
    } else if (choices[c].values.size() > 1) {
      others += "," + name;
    }
    if (!choices[c].key.empty()) entry["set"].push_back(choices[c].key + "=" + value.dump());
  }
  if (!pattern.empty()) {
    Json all = Json::array();
    for (size_t l = 0; l < layers.size(); ++l) {
      all.push_back(layers[l]);
      all.back()["mixer"] = pattern[l % pattern.size()];
    }
    // before the other choices, which may be of single layers
    Json set = Json::array({"spec.layers=" + all.dump()});
    if (spec.contains("cycles")) set.push_back("spec.cycles=1");
    if (spec.contains("n_layers")) set.push_back(fmt::format("spec.n_layers={}", layers.size()));
    set.insert(set.end(), entry["set"].begin(), entry["set"].end());
    entry["set"] = std::move(set);
  }
  entry["name"] =
      layout.empty() ? others.substr(std::min<size_t>(1, others.size())) : layout + others;
  return entry;
}

}  // namespace

LayoutSearch read_search(const StudyFile& file) {
  nn::register_mechanisms();
  LayoutSearch out;
  Json plain = file.json;
  const Json json = plain["search"];
  plain.erase("search");
  spec::check_keys(json, {"mixers", "over", "period", "candidates", "finalists"}, kSearch);
  Json numbers = json;
  numbers.erase("mixers");
  numbers.erase("over");
  out.how = spec::read_struct<SearchRecipe>(numbers, spec::Scope().at(kSearch));
  if (!plain.contains("base") || !plain["base"].is_string())
    fail(ErrorKind::spec, "study", "\"base\" is missing; expected the path of a recipe");
  const Json base = merged_recipe(file.folder / plain["base"].get<std::string>());
  const Json spec = base.value("spec", Json());
  const std::vector<Json> layers = layers_of(spec);
  const size_t period = out.how.period > 0 ? static_cast<size_t>(out.how.period) : layers.size();
  if (layers.size() % period != 0)
    fail(ErrorKind::usage, "search.period", "{} does not divide the {} layers of the base", period,
         layers.size());
  const std::vector<Choice> choices = choices_of(json, spec, period);
  double combinations = 1;
  for (const Choice& choice : choices) combinations *= static_cast<double>(choice.values.size());
  if (combinations < 2)
    fail(ErrorKind::usage, kSearch,
         "nothing to choose from; expected \"mixers\", or \"over\" with several values of a key");
  if (combinations > kMostLayouts)
    fail(ErrorKind::usage, kSearch, "{:g} combinations; expected at most {:g}: use \"period\"",
         combinations, kMostLayouts);
  if (!plain.contains("entries")) plain["entries"] = Json::array();
  if (!plain["entries"].is_array())
    fail(ErrorKind::spec, "entries", "found {}; expected a list of entries",
         spec::kind_of(plain["entries"]));
  if (plain.contains("reference") && plain["reference"].is_string())
    out.reference = plain["reference"].get<std::string>();
  const std::vector<uint64_t> numbers_of = chosen(combinations, out.how.candidates);
  for (const uint64_t number : numbers_of)
    plain["entries"].push_back(entry_of(number, choices, spec, layers));
  out.study = read_study(plain, file.folder);
  out.baselines = out.study.entries.size() - numbers_of.size();
  return out;
}

std::vector<LayoutTrial> trials_of(const LayoutSearch& search) {
  std::vector<LayoutTrial> out;
  for (size_t i = search.baselines; i < search.study.entries.size(); ++i) {
    const StudyEntry& entry = search.study.entries[i];
    const std::vector<double> rates =
        search.study.tunes() ? search.study.rates_of(entry) : std::vector{entry.rate};
    for (const double rate : rates) out.push_back({i, rate});
  }
  return out;
}

std::vector<RankedLayout> ranked_layouts(const std::vector<LayoutTrial>& trials,
                                         const Halving& halving) {
  std::vector<RankedLayout> out;
  std::set<size_t> seen;
  for (const HalvingTrial& one : halving.ranking()) {
    const LayoutTrial& trial = trials.at(one.candidate);
    if (seen.insert(trial.entry).second)
      out.push_back({trial.entry, trial.rate, one.fraction, one.loss});
  }
  return out;
}

Study final_study(const LayoutSearch& search, const std::vector<RankedLayout>& ranking) {
  Study study = search.study;
  study.entries.resize(search.baselines);
  const size_t finalists = std::min(ranking.size(), static_cast<size_t>(search.how.finalists));
  for (size_t k = 0; k < finalists; ++k)
    study.entries.push_back(search.study.entries[ranking[k].entry]);
  study.reference = search.reference;
  if (std::none_of(study.entries.begin(), study.entries.end(),
                   [&](const StudyEntry& entry) { return entry.name == study.reference; }))
    study.reference = study.entries.front().name;
  return study;
}

ReportPart search_part(const LayoutSearch& search, const std::vector<RankedLayout>& ranking) {
  Rows rows{{"layout", "rate", "budget", "valid loss"}};
  Json json = {{"candidates", search.candidates()}, {"layouts", Json::array()}};
  for (const RankedLayout& one : ranking) {
    const std::string& name = search.study.entries[one.entry].name;
    const bool finite = std::isfinite(one.loss);
    rows.push_back({name, fmt::format("{:.4g}", one.rate), fmt::format("1/{:g}", 1 / one.fraction),
                    finite ? fmt::format("{:.4f}", one.loss) : "diverged"});
    json["layouts"].push_back({{"name", name},
                               {"rate", one.rate},
                               {"fraction", one.fraction},
                               {"valid_loss", finite ? Json(one.loss) : Json()}});
  }
  return {.key = "search",
          .title = fmt::format("Layout search: {} candidates", search.candidates()),
          .json = std::move(json),
          .note = fmt::format(
              "Successive halving, one seed: losses of the same part of the budget are comparable. "
              "The first {} are compared with several seeds below.",
              std::min<size_t>(ranking.size(), static_cast<size_t>(search.how.finalists))),
          .tables = {rows}};
}

}  // namespace tessera::train
