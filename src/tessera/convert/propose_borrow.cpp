#include <algorithm>
#include <cctype>
#include <functional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family_files.h"
#include "tessera/convert/propose_forms.h"
#include "tessera/convert/propose_keys.h"

namespace tessera::convert {
namespace {

constexpr size_t kMaxBorrowed = 12;  // keys of one draft
constexpr size_t kMaxWays = 6;       // ways to read one key

/// The fragments that families share, by name.
const std::map<std::string, Json>& shared_fragments() {
  static const std::map<std::string, Json> fragments = [] {
    std::map<std::string, Json> all;
    spec::JsonLimits limits;
    limits.comments = true;
    for (const EmbeddedFile& file : embedded_fragment_files())
      all.emplace(file.name, spec::parse_json(file.text, file.name, limits));
    return all;
  }();
  return fragments;
}

/// Whether a text has a word between other characters.
bool mentions_word(const std::string& text, const std::string& word) {
  const auto in_word = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 ||
                                text[at] == '_' || text[at] == '.');
  };
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
    const size_t end = at + word.size();
    const bool inside = in_word(end) && text[end] != '.';
    if (!inside && (at == 0 || !in_word(at - 1))) return true;
  }
  return false;
}

bool mentions(const Json& json, const std::string& key) {
  return mentions_word(json.dump(), "config." + key);
}

/// Members of "let" and of the config's "read" in one, the latter on top.
Json read_values(const Json& family) {
  Json values = family.value("let", Json::object());
  values.update(family.at("dialects").at(kHf).value("read", Json::object()));
  return values;
}

std::set<std::string> function_names(const Json& family) {
  std::set<std::string> names;
  const Json functions = family.value("functions", Json::object());
  for (const auto& [signature, body] : functions.items())
    names.insert(signature.substr(0, signature.find('(')));
  return names;
}

/// Values of another family that read a key, those that the base uses and that depend on them, and
/// what they are made of. `known` and `used`: values of the base, and names in its expressions.
Json borrowed_values(const Json& from,
                     const Json& known,
                     const std::set<std::string>& used,
                     const std::string& key) {
  const Json own = read_values(from);
  std::vector<std::string> queue;
  for (const auto& [name, body] : own.items())
    if (mentions(body, key)) queue.push_back(name);
  Json borrowed = Json::object();
  bool reaches = false;
  for (size_t i = 0; i < queue.size(); ++i) {
    const std::string name = queue[i];
    borrowed[name] = own.at(name);
    if (used.contains(name)) {
      reaches = true;
      continue;
    }
    for (const auto& [other, body] : own.items())
      if (identifiers_of(body).contains(name) &&
          std::find(queue.begin(), queue.end(), other) == queue.end())
        queue.push_back(other);
  }
  if (!reaches) return Json::object();
  for (bool added = true; added;) {
    added = false;
    const Json before = borrowed;
    for (const auto& [name, body] : before.items())
      for (const std::string& part : identifiers_of(body))
        if (own.contains(part) && !known.contains(part) && !borrowed.contains(part)) {
          borrowed[part] = own.at(part);
          added = true;
        }
  }
  return borrowed;
}

/// "layers.{i}.ffn.{s}.weight" as "layers.*.ffn.*.weight".
std::string glob_of(const std::string& ours) {
  std::string glob;
  int depth = 0;
  for (const char c : ours) {
    if (c == '{' && depth++ == 0) glob += '*';
    if (depth == 0) glob += c;
    if (c == '}') --depth;
  }
  return glob;
}

struct Way {
  std::string from;  // a family or a fragment
  std::vector<std::string> include = {};
  Json read = Json::object(), expect = Json::object();
};

/// How other families read a key, the most frequent first.
std::vector<Way> ways_to_read(Trial& trial, const Draft& draft, const std::string& path) {
  std::vector<Way> ways;
  for (const auto& [name, fragment] : shared_fragments())
    if (fragment.contains("dialects") && fragment["dialects"].contains(kHf) &&
        mentions(fragment["dialects"][kHf].value("read", Json::object()), path))
      ways.push_back({.from = name, .include = {name}});
  const Json base = trial.families().merged(draft.base);
  const Json known = read_values(base);
  const std::set<std::string> functions = function_names(base), used = identifiers_of(base);
  const Json value = trial.evidence().at(path);
  std::map<std::string, std::pair<int, Way>> by_text;
  for (const std::string& reader : trial.readers_of(path)) {
    const Json from = trial.families().merged(reader);
    Way way;
    way.from = reader;
    const Json accepted =
        from.at("dialects").at(kHf).value("expect", Json::object()).value(path, Json());
    if (accepted.is_array() && std::find(accepted.begin(), accepted.end(), value) != accepted.end())
      way.expect[path] = Json::array({value});
    else
      way.read = borrowed_values(from, known, used, path);
    if (way.read.empty() && way.expect.empty()) continue;
    const std::set<std::string> parts = identifiers_of(way.read);
    for (const auto& [name, fragment] : shared_fragments())
      for (const std::string& function : function_names(fragment))
        if (parts.contains(function) && !functions.contains(function) &&
            std::find(way.include.begin(), way.include.end(), name) == way.include.end())
          way.include.push_back(name);
    const auto [at, added] =
        by_text.try_emplace(way.read.dump() + way.expect.dump(), 0, std::move(way));
    ++at->second.first;
  }
  std::vector<std::pair<int, Way>> counted;
  for (auto& [text, way] : by_text) counted.push_back(std::move(way));
  std::stable_sort(counted.begin(), counted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [count, way] : counted) ways.push_back(std::move(way));
  if (ways.size() > kMaxWays) ways.resize(kMaxWays);
  return ways;
}

/// Whether a rule of another family with a condition on a value that a key gives adds tensors: the
/// key is a switch of them.
bool switches_tensors(const Json& from, const std::string& key) {
  const Json own = read_values(from);
  std::set<std::string> values;
  for (const auto& [name, body] : own.items())
    if (mentions(body, key)) values.insert(name);
  const std::function<bool(const Json&)> has_condition = [&](const Json& rules) {
    for (const Json& rule : rules) {
      if (rule.contains("if") && rule["if"].is_string())
        for (const std::string& value : values)
          if (mentions_word(rule["if"].get<std::string>(), value)) return true;
      if (rule.contains("rules") && has_condition(rule["rules"])) return true;
    }
    return false;
  };
  return has_condition(from.value("tensors", Json::array()));
}

Draft read_so(const Draft& draft, const Way& way) {
  Draft changed = draft;
  for (const std::string& name : way.include) changed.include(name);
  for (const auto& [name, body] : way.read.items()) changed.set(name, body);
  for (const auto& [key, values] : way.expect.items()) changed.hf()["expect"][key] = values;
  return changed;
}

}  // namespace

void borrow_keys(Trial& trial, Draft& draft) {
  std::set<std::string> tried;
  while (tried.size() < kMaxBorrowed) {
    const auto refused = std::find_if(
        draft.dry.keys.begin(), draft.dry.keys.end(),
        [&](const DryRun::Key& key) { return !key.readers.empty() && !tried.contains(key.path); });
    if (refused == draft.dry.keys.end()) return;
    const std::string path = refused->path;
    tried.insert(path);
    const Json value = refused->value;
    const auto take = [&](const Way& way) {
      Draft changed = read_so(draft, way);
      const size_t before = draft.dry.refused_keys();
      trial.update(changed);
      include_rules(trial, changed);
      if (!changed.dry.spec || changed.dry.errors.size() > draft.dry.errors.size() ||
          changed.left_over() >= draft.left_over() || changed.dry.refused_keys() >= before ||
          (!way.read.empty() && !trial.takes_effect(changed, path)))
        return false;
      if (!way.read.empty() || way.expect.empty())
        changed.unsure.push_back(
            fmt::format("key \"{}\" = {} is read as {} reads it", path, shown(value), way.from));
      draft = std::move(changed);
      return true;
    };
    // members of an object are often read together
    bool taken = false;
    for (std::string part = path; !taken; part = part.substr(0, part.rfind('.'))) {
      for (const Way& way : ways_to_read(trial, draft, part))
        if ((taken = take(way))) break;
      if (std::count(part.begin(), part.end(), '.') < 2) break;
    }
  }
}

void claim_switches(Trial& trial, Draft& draft) {
  if (!draft.dry.spec || !draft.dry.missing.empty() || !draft.dry.unmapped.empty() ||
      !draft.dry.ungiven.empty())
    return;
  for (const DryRun::Key& key : std::vector<DryRun::Key>(draft.dry.keys)) {
    if (key.readers.empty() || key.value != Json(true)) continue;
    const auto reader =
        std::find_if(key.readers.begin(), key.readers.end(), [&](const std::string& name) {
          return switches_tensors(trial.families().merged(name), key.path);
        });
    if (reader == key.readers.end()) continue;
    Draft changed = draft;
    changed.hf()["expect"][key.path] = Json::array({true});
    trial.take_if_no_worse(draft, std::move(changed),
                           fmt::format("key \"{}\" = true adds tensors in {}; all tensors of the "
                                       "file have a place without it",
                                       key.path, *reader));
  }
}

void pass_over_sizes(Trial& trial, Draft& draft) {
  if (!draft.fits()) return;
  for (const DryRun::Key& key : std::vector<DryRun::Key>(draft.dry.keys)) {
    if (key.readers.empty() || !key.value.is_number_integer()) continue;
    KeysOfValues own;
    add_keys_of(trial.families().named(draft.base), own);
    for (const auto& [value, keys] : own) {
      const auto others = trial.keys_of_values().find(value);
      const bool named = std::any_of(keys.begin(), keys.end(), [&](const auto& one) {
        return key_agreement(one.first, key.path, key.value) >= kCertainKey;
      });
      const bool known =
          others != trial.keys_of_values().end() && others->second.contains(key.path);
      const int64_t size = named || known ? trial.size(draft, value) : -1;
      if (size <= 0) continue;
      Draft changed = draft;
      changed.hf()["ignored_keys"][key.path] = fmt::format("{} = {} by the tensors", value, size);
      const std::string why = fmt::format(
          "key \"{}\" = {} is ignored: by its name it is {}, which is {} by the shapes of the "
          "tensors",
          key.path, shown(key.value), value, size);
      if (trial.take_if_no_worse(draft, std::move(changed), key.value == size ? "" : why)) break;
    }
  }
}

void include_rules(Trial& trial, Draft& draft) {
  if (!draft.dry.spec || draft.dry.ungiven.empty()) return;
  // fragments by the letters of their most specific rule that may give one of the parameters
  std::vector<std::pair<size_t, std::string>> candidates;
  for (const auto& [name, fragment] : shared_fragments()) {
    size_t letters = 0;
    const std::function<void(const Json&)> look = [&](const Json& rules) {
      for (const Json& rule : rules) {
        if (rule.contains("rules")) look(rule["rules"]);
        if (!rule.contains("ours") || !rule.contains(kHf)) continue;
        const Json& ours = rule["ours"];
        for (const Json& one : ours.is_array() ? ours : Json::array({ours})) {
          if (!one.is_string()) continue;
          const std::string glob = glob_of(one.get<std::string>());
          const bool gives = std::any_of(
              draft.dry.ungiven.begin(), draft.dry.ungiven.end(),
              [&](const std::string& parameter) { return matches_glob(parameter, glob); });
          if (gives) letters = std::max(letters, glob.size());
        }
      }
    };
    look(fragment.value("tensors", Json::array()));
    if (letters > 0) candidates.emplace_back(letters, name);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (candidates.size() > kMaxWays) candidates.resize(kMaxWays);
  Draft best = draft;
  for (const auto& [letters, name] : candidates) {
    Draft changed = draft;
    changed.include(name);
    if (changed.family == draft.family) continue;
    trial.update(changed);
    if (changed.dry.spec && changed.dry.errors.size() <= draft.dry.errors.size() &&
        changed.dry.ungiven.size() < draft.dry.ungiven.size() &&
        (best.family == draft.family || changed.left_over() < best.left_over()))
      best = std::move(changed);
  }
  draft = std::move(best);
}

}  // namespace tessera::convert
