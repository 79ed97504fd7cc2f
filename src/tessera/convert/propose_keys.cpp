#include "tessera/convert/propose_keys.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::convert {
namespace {

constexpr double kLeastKeyLikeness = 0.2;

/// Words of keys that say one thing.
std::string canonical_word(const std::string& word) {
  static const std::map<std::string, std::string> same = {{"num", "n"},
                                                          {"number", "n"},
                                                          {"layer", "layers"},
                                                          {"blocks", "layers"},
                                                          {"block", "layers"},
                                                          {"depth", "layers"},
                                                          {"head", "heads"},
                                                          {"embd", "hidden"},
                                                          {"embed", "hidden"},
                                                          {"embedding", "hidden"},
                                                          {"width", "hidden"},
                                                          {"model", "hidden"},
                                                          {"dim", "size"},
                                                          {"d", "size"},
                                                          {"rotary", "rope"},
                                                          {"inner", "intermediate"},
                                                          {"ffn", "intermediate"},
                                                          {"mlp", "intermediate"},
                                                          {"ff", "intermediate"},
                                                          {"feedforward", "intermediate"},
                                                          {"ln", "norm"},
                                                          {"layernorm", "norm"},
                                                          {"eps", "epsilon"},
                                                          {"attn", "attention"},
                                                          {"activation", "act"},
                                                          {"max", "n"},
                                                          {"positions", "position"},
                                                          {"ctx", "position"},
                                                          {"length", "position"},
                                                          {"kv", "value"},
                                                          {"tok", "token"},
                                                          {"tokens", "token"},
                                                          {"expert", "experts"},
                                                          {"base", "theta"}};
  const auto found = same.find(word);
  return found == same.end() ? word : found->second;
}

std::set<std::string> words_of_key(std::string_view key) {
  std::set<std::string> words;
  std::string word;
  for (const char c : std::string(key) + "_") {
    if (c != '_' && c != '.') {
      word += c;
      continue;
    }
    if (!word.empty()) words.insert(canonical_word(word));
    word.clear();
  }
  return words;
}

double likeness_of_keys(std::string_view a, std::string_view b) {
  const std::set<std::string> x = words_of_key(a), y = words_of_key(b);
  size_t common = 0;
  for (const std::string& word : x) common += y.contains(word) ? 1 : 0;
  return static_cast<double>(common) /
         static_cast<double>(std::max<size_t>(1, x.size() + y.size() - common));
}

/// What a number under a key of these words lies between.
struct Range {
  const char* word;
  double least, most;
};
constexpr Range kRanges[] = {{"epsilon", 1e-14, 1e-2}, {"theta", 100, 1e12}};
constexpr double kByRange = 0.55;  // of keys with such a word and a number in its range

}  // namespace

double key_agreement(std::string_view wanted, std::string_view key, const Json& value) {
  const std::set<std::string> x = words_of_key(wanted), y = words_of_key(key);
  double like = likeness_of_keys(wanted, key);
  for (const Range& range : kRanges) {
    if (!x.contains(range.word)) {
      // a key of this word is of no other kind
      if (y.contains(range.word)) return 0;
      continue;
    }
    if (!value.is_number() || value.get<double>() < range.least || value.get<double>() > range.most)
      return 0;
    if (y.contains(range.word)) like = std::max(like, kByRange);
  }
  return like;
}

namespace {

/// Keys of the config that a base cannot do without: values that are read by one key and have no
/// default.
std::set<std::string> required_keys(const Family& family) {
  std::set<std::string> required;
  const auto dialect = family.dialects.find(kHf);
  if (dialect == family.dialects.end()) return required;
  for (const auto& [value, body] : dialect->second.read)
    if (const std::vector<std::string> keys = direct_keys(body->text());
        keys.size() == 1 && body->text() == "config." + keys.front())
      required.insert(keys.front());
  return required;
}

bool is_renamed(const Json& renames, const std::string& key) {
  return std::find(renames.begin(), renames.end(), Json(key)) != renames.end();
}

std::string inferred_key(const std::string& file, const std::string& base) {
  return fmt::format("key \"{}\" is read as the base's \"{}\", by the words of its name", file,
                     base);
}

/// The base's keys that the config has by a name under which other families read the same value.
Json keys_for(Trial& trial, const Family& base) {
  const Json& config = trial.evidence().config();
  const Dialect& dialect = base.dialect(kHf);
  KeysOfValues own;
  add_keys_of(base, own);
  Json keys = Json::object();
  for (const auto& [key, value] : config.items()) {
    if (trial.claims(dialect, key) || value.is_object()) continue;
    std::string best;
    int most = 0;
    for (const auto& [name, known] : trial.keys_of_values()) {
      const auto read = own.find(name);
      const auto count = known.find(key);
      if (count == known.end() || read == own.end() || count->second <= most) continue;
      const auto& wanted = read->second;
      if (std::any_of(wanted.begin(), wanted.end(), [&](const auto& entry) {
            return config.contains(entry.first) || keys.contains(entry.first);
          }))
        continue;
      // of several the one that most families have
      best = std::max_element(wanted.begin(), wanted.end(), [&](const auto& a, const auto& b) {
               return known.contains(a.first) &&
                              (!known.contains(b.first) || known.at(a.first) < known.at(b.first))
                          ? true
                          : !known.contains(a.first) && known.contains(b.first);
             })->first;
      most = count->second;
    }
    if (!best.empty() && best.find('.') == std::string::npos) keys[best] = key;
  }
  return keys;
}

/// Whether a key of the config may be the base's by its number, where tensors show that.
bool fits_tensors(const Evidence& evidence,
                  const KeysOfValues& of_base,
                  const std::string& wanted,
                  const Json& number) {
  for (const auto& [value, keys] : of_base)
    if (const int64_t shown = keys.contains(wanted) ? evidence.size_of(value) : 0; shown > 0)
      return number == shown;
  return true;
}

/// Keys that the base cannot do without, from keys of the config that no family has, by the nearest
/// words.
void infer_required(Trial& trial, Draft& draft) {
  const Json& config = trial.evidence().config();
  const Family& base = trial.families().named(draft.base);
  KeysOfValues own;
  add_keys_of(base, own);
  for (const std::string& wanted : required_keys(base)) {
    Json& keys = draft.hf()["keys"];
    if (config.contains(wanted) || keys.contains(wanted)) continue;
    std::string best;
    double most = kLeastKeyLikeness;
    for (const auto& [key, value] : config.items()) {
      if (!value.is_number_integer() || trial.claims(base.dialect(kHf), key) ||
          is_renamed(keys, key) || !trial.readers_of(key).empty() ||
          !fits_tensors(trial.evidence(), own, wanted, value))
        continue;
      if (const double like = likeness_of_keys(wanted, key); like > most) {
        most = like;
        best = key;
      }
    }
    if (best.empty()) continue;
    keys[wanted] = best;
    draft.unsure.push_back(inferred_key(best, wanted));
  }
  if (draft.hf()["keys"].empty()) draft.hf().erase("keys");
}

/// Keys of the config that the base takes with a condition ("require(n_head % 4 == 0, why,
/// config.n_head)"), which is of its own tensors: read without it where it does not hold.
void relax_required(Trial& trial, Draft& draft) {
  if (draft.dry.spec || draft.dry.errors.empty()) return;
  for (const auto& [value, body] : trial.dialect_of(draft.base).read) {
    const std::string text = body->text();
    const size_t last = text.rfind(", config.");
    if (!text.starts_with("require(") || last == std::string::npos || !text.ends_with(")"))
      continue;
    const std::string key = text.substr(last + 2, text.size() - last - 3);
    if (direct_keys(key).size() != 1 || !is_absent(trial.value(draft, value))) continue;
    Draft changed = draft;
    changed.set(value, "=" + key);
    trial.update(changed);
    if (changed.dry.errors.size() >= draft.dry.errors.size() && !changed.dry.spec) continue;
    changed.unsure.push_back(fmt::format(
        "the base reads \"{}\" with a condition that the config does not meet: {}", value, text));
    draft = std::move(changed);
  }
}

}  // namespace

Draft first_draft(Trial& trial, const std::string& base) {
  Draft draft;
  draft.base = base;
  draft.family = {{"family", trial.name()},
                  {"base", base},
                  {"about", fmt::format("{}, drafted from a checkpoint on the base {}.",
                                        trial.evidence().type(), base)},
                  {"dialects", {{kHf, {{"types", {trial.evidence().type()}}}}}}};
  const Json keys = keys_for(trial, trial.families().named(base));
  if (!keys.empty()) draft.hf()["keys"] = keys;
  infer_required(trial, draft);
  trial.update(draft);
  infer_keys(trial, draft);
  relax_required(trial, draft);
  return draft;
}

namespace {

constexpr double kLeastAgreement = 0.49;
/// Keys of the base, each with the key of the config that is nearest to it.
std::vector<std::pair<std::string, std::string>> inferred_keys(Trial& trial, Draft& draft) {
  const Json& config = trial.evidence().config();
  const Dialect& dialect = trial.dialect_of(draft.base);
  KeysOfValues own;
  add_keys_of(trial.families().named(draft.base), own);
  std::set<std::string> wanted;
  for (const auto& [value, keys] : own)
    for (const auto& [key, n] : keys)
      if (key.find('.') == std::string::npos && !config.contains(key)) wanted.insert(key);
  const Json given = draft.hf().value("keys", Json::object());
  std::vector<std::pair<std::string, std::string>> found;
  for (const DryRun::Key& key : draft.dry.keys) {
    if (key.path.find('.') != std::string::npos || dialect.claims.contains(key.path)) continue;
    std::string best;
    double most = key.readers.empty() ? kLeastAgreement : kCertainKey;
    for (const std::string& name : wanted) {
      if (given.contains(name) || std::any_of(found.begin(), found.end(),
                                              [&](const auto& one) { return one.first == name; }))
        continue;
      const double like = key_agreement(name, key.path, key.value);
      if (like > most && fits_tensors(trial.evidence(), own, name, key.value)) {
        most = like;
        best = name;
      }
    }
    if (!best.empty()) found.emplace_back(best, key.path);
  }
  return found;
}

}  // namespace

bool infer_keys(Trial& trial, Draft& draft) {
  const auto found = inferred_keys(trial, draft);
  if (found.empty()) return false;
  const auto with = [&](Draft changed, const std::string& base, const std::string& file) {
    changed.hf()["keys"][base] = file;
    changed.unsure.push_back(inferred_key(file, base));
    return changed;
  };
  Draft all = draft;
  for (const auto& [base, file] : found) all = with(std::move(all), base, file);
  if (trial.take_if_better(draft, std::move(all))) return true;
  // a doubtful one takes no others with it
  bool any = false;
  for (const auto& [base, file] : found)
    any = trial.take_if_better(draft, with(draft, base, file)) || any;
  return any;
}

}  // namespace tessera::convert
