#include "tessera/convert/propose.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/tensor_roles.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/spec/names.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using Dims = std::vector<int64_t>;

constexpr size_t kMaxConfig = size_t{16} << 20;
constexpr size_t kRefined = 24;   // bases whose names are matched
constexpr size_t kSwitched = 10;  // bases whose switches are tried
constexpr int kRounds = 4;        // names that are found lead to others
constexpr double kLeastLikeness = 0.2;
constexpr double kEqual = 0.75;  // costs of bases that fit equally differ by less
constexpr size_t kTold = 3;      // of them whose differences are reported
constexpr const char* kHf = "hf";

int64_t count_of(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// --- keys ---------------------------------------------------------------------------------------

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

/// Keys that an expression is, or falls back on: "config.a ?? config.b ?? 1" is a and b.
std::vector<std::string> direct_keys(const std::string& text) {
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(" ?? ", begin), text.size());
    std::string part = text.substr(begin, end - begin);
    if (part.starts_with("pick(")) part = part.substr(5);
    constexpr std::string_view kConfig = "config.";
    if (part.starts_with(kConfig) &&
        part.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") ==
            std::string::npos)
      keys.push_back(part.substr(kConfig.size()));
    begin = end + 4;
  }
  return keys;
}

/// The keys by which families read each value, and how many do.
using KeysOfValues = std::map<std::string, std::map<std::string, int>>;

void add_keys_of(const Family& family, KeysOfValues& to) {
  const auto dialect = family.dialects.find(kHf);
  if (dialect == family.dialects.end()) return;
  for (const auto& [value, body] : dialect->second.read)
    for (const std::string& key : direct_keys(body->text())) ++to[value][key];
}

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

// --- specs --------------------------------------------------------------------------------------

/// The members of a resolved spec by their paths, those of all layers under one.
std::map<std::string, std::set<std::string>> members_of(const model::ModelSpec& spec) {
  std::map<std::string, std::set<std::string>> members;
  const Json flat = model::resolve(spec).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string dotted = path.substr(1);
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    members[numbered(dotted).pattern].insert(shown(value));
  }
  return members;
}

// --- tensors ------------------------------------------------------------------------------------

/// Tensors of one pattern: what a base asks for, or what a file has.
struct TensorGroup {
  struct Member {
    std::vector<int64_t> numbers;
    std::vector<Dims> shapes;  // of the tensor; of what is expected, those of ours
    std::vector<std::string> ours;
    bool steps = false, alone = true;
    int64_t count = 0;  // elements of the one tensor
  };
  std::vector<Member> members;

  bool same_numbers(const TensorGroup& other) const {
    if (members.size() != other.members.size()) return false;
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i].numbers != other.members[i].numbers) return false;
    return true;
  }
};
using TensorGroups = std::map<std::string, TensorGroup>;

void sort_members(TensorGroups& groups) {
  for (auto& [pattern, group] : groups)
    std::sort(group.members.begin(), group.members.end(),
              [](const auto& a, const auto& b) { return a.numbers < b.numbers; });
}

enum class Fit { none, size, turned, exact };

Fit fit_of(const TensorGroup& expected, const TensorGroup& found) {
  if (!expected.same_numbers(found)) return Fit::none;
  Fit fit = Fit::exact;
  for (size_t i = 0; i < expected.members.size(); ++i) {
    const TensorGroup::Member& want = expected.members[i];
    const Dims& have = found.members[i].shapes.front();
    Fit one = Fit::none;
    if (want.ours.size() == 1 && want.alone && want.shapes.front() == have)
      one = Fit::exact;
    else if (want.ours.size() == 1 && want.alone && have.size() == 2 &&
             want.shapes.front() == Dims{have[1], have[0]})
      one = want.steps ? Fit::none : Fit::turned;
    else if (want.steps && want.count == count_of(have))
      one = Fit::size;
    if (one == Fit::none) return one;
    fit = std::min(fit, one);
  }
  return fit;
}

/// "layers.3.mixer.q.weight" as "layers.{i}.mixer.q.weight".
std::string looped(const std::string& name) {
  std::string pattern = numbered(name).pattern;
  if (const size_t star = pattern.find('*'); star != std::string::npos)
    pattern.replace(star, 1, "{i}");
  return pattern;
}

// --- the search ---------------------------------------------------------------------------------

struct Draft {
  std::string base;
  Json family;
  DryRun dry;
  double cost = 0;
  std::vector<std::string> unsure;
};

class Search {
 public:
  Search(const fs::path& folder, const ProposeOptions& options)
      : options_(options), path_((folder / "config.json").string()) {
    if (!fs::is_regular_file(folder / "config.json"))
      fail(ErrorKind::file, folder.string(),
           "there is no config.json; expected a Hugging Face folder");
    config_ = parse_hf_config(read_text_file(folder / "config.json", kMaxConfig), path_);
    for (const char* key : {"quantization_config", "compression_config"})
      if (config_.contains(key))
        fail(ErrorKind::file, path_,
             "\"{}\": packed weights hide shapes; expected the folder before quantization", key);
    const Json type = config_.value("model_type", Json());
    if (!type.is_string())
      fail(ErrorKind::file, path_, "\"model_type\" is {}; expected the name of the type",
           shown(type));
    type_ = type.get<std::string>();
    set_ = FamilySet::load(options.families);
    for (const std::string& name : options.hidden) set_.hide(name);
    const std::vector<std::string> known = set_.types(kHf);
    if (std::find(known.begin(), known.end(), type_) != known.end())
      fail(ErrorKind::usage, "families",
           "model type \"{}\" is known: it loads as it is; expected a type that no family reads",
           type_);
    tensors_ = format::open_tensor_folder(folder);
    for (const char c : type_)
      name_ +=
          std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '_';
    while (contains(set_.names(), name_)) name_ += "_";
  }

  Proposal run() {
    std::vector<std::string> bases;
    for (const std::string& name : set_.names()) try {
        const Family& family = set_.named(name);
        add_keys_of(family, keys_of_values_);
        const auto dialect = family.dialects.find(kHf);
        if (dialect != family.dialects.end() && !dialect->second.inherited) bases.push_back(name);
      } catch (const Error& error) {
        // a broken file of the user's is no base
        if (error.kind() == ErrorKind::internal) throw;
      }
    if (!options_.base.empty()) {
      if (!contains(bases, options_.base))
        fail(ErrorKind::usage, "--base", "there is no family \"{}\"{}", options_.base,
             spec::did_you_mean(options_.base, bases));
      bases = {options_.base};
    }
    std::vector<Draft> drafts;
    for (const std::string& base : bases) drafts.push_back(first_draft(base));
    const auto by_cost = [](const Draft& a, const Draft& b) { return a.cost < b.cost; };
    std::stable_sort(drafts.begin(), drafts.end(), by_cost);
    if (drafts.size() > kRefined) drafts.resize(kRefined);
    for (Draft& draft : drafts) refine(draft);
    std::stable_sort(drafts.begin(), drafts.end(), by_cost);
    if (!drafts.front().dry.complete()) {
      for (size_t i = 0; i < std::min(kSwitched, drafts.size()); ++i) try_switches(drafts[i]);
      std::stable_sort(drafts.begin(), drafts.end(), by_cost);
    }
    prefer_typical(drafts);
    return finished(drafts);
  }

 private:
  static bool contains(const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  }

  /// Whether the family of the draft has a key of the config, or takes no notice of it.
  bool claims(const Dialect& dialect, const std::string& key) const {
    const auto at = dialect.claims.lower_bound(key);
    return dialect.ignores_key(key) || matches_any(key, set_.metadata_keys(kHf)) ||
           (at != dialect.claims.end() && (*at == key || at->starts_with(key + ".")));
  }

  /// Base and renames of keys alone.
  Draft first_draft(const std::string& base) {
    Draft draft;
    draft.base = base;
    draft.family = {
        {"family", name_},
        {"base", base},
        {"about", fmt::format("{}, drafted from a checkpoint on the base {}.", type_, base)},
        {"dialects", {{kHf, {{"types", {type_}}}}}}};
    const Json keys = keys_for(set_.named(base));
    if (!keys.empty()) hf(draft)["keys"] = keys;
    infer_required(draft);
    update(draft);
    infer_keys(draft);
    return draft;
  }

  static bool is_value(const Json& renames, const std::string& name) {
    return std::find(renames.begin(), renames.end(), Json(name)) != renames.end();
  }

  static Json& hf(Draft& draft) { return draft.family["dialects"][kHf]; }

  /// The base's keys that the config has by a name under which other families read the same value.
  Json keys_for(const Family& base) {
    const Dialect& dialect = base.dialect(kHf);
    KeysOfValues own;
    add_keys_of(base, own);
    Json keys = Json::object();
    for (const auto& [key, value] : config_.items()) {
      if (claims(dialect, key) || value.is_object()) continue;
      std::string best;
      int most = 0;
      for (const auto& [name, known] : keys_of_values_) {
        const auto read = own.find(name);
        const auto count = known.find(key);
        if (count == known.end() || read == own.end() || count->second <= most) continue;
        const auto& wanted = read->second;
        if (std::any_of(wanted.begin(), wanted.end(), [&](const auto& entry) {
              return config_.contains(entry.first) || keys.contains(entry.first);
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

  /// Whether a family has the key, other than the drafts, the last of which is in the set.
  bool has_readers(const std::string& key) {
    const std::vector<std::string> readers = set_.readers_of(kHf, key);
    return std::any_of(readers.begin(), readers.end(),
                       [&](const std::string& reader) { return reader != name_; });
  }

  /// Keys that the base cannot do without, from keys of the config that no family has, by the
  /// nearest words.
  void infer_required(Draft& draft) {
    const Family& base = set_.named(draft.base);
    for (const std::string& wanted : required_keys(base)) {
      Json& keys = hf(draft)["keys"];
      if (config_.contains(wanted) || keys.contains(wanted)) continue;
      std::string best;
      double most = kLeastLikeness;
      for (const auto& [key, value] : config_.items()) {
        if (!value.is_number_integer() || claims(base.dialect(kHf), key) || is_value(keys, key) ||
            has_readers(key))
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
    if (hf(draft)["keys"].empty()) hf(draft).erase("keys");
  }

  static std::string inferred_key(const std::string& file, const std::string& base) {
    return fmt::format("key \"{}\" is read as the base's \"{}\", by the words of its name", file,
                       base);
  }

  /// Dry run and cost of a draft as it is.
  void update(Draft& draft) {
    draft.dry = evaluate(draft.family);
    draft.cost = cost_of(draft);
  }

  DryRun evaluate(const Json& family) {
    set_.hide(name_);
    values_.clear();
    try {
      set_.add_user(family.dump(), name_ + ".json");
      const Foreign foreign{kHf, config_, &tensors_, path_};
      Importer importer(set_.named(name_), foreign, set_);
      DryRun run = importer.dry_run();
      for (const char* name : {"n_layers", "n_heads", "n_kv_heads", "head_dim", "d_hidden",
                               "rope_layout", "rotary_dim", "hf_pairs"})
        values_[name] = importer.value(name);
      for (const std::string& name : switches_) values_[name] = importer.value(name);
      return run;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      DryRun run;
      run.errors.emplace_back(error.what());
      return run;
    }
  }

  /// What a draft leaves over, and how much it asks of its base.
  double cost_of(const Draft& draft) {
    const DryRun& dry = draft.dry;
    const auto size = [](const Json& json, const char* key) {
      const auto found = json.find(key);
      return found == json.end() ? 0.0 : static_cast<double>(found->size());
    };
    double left = static_cast<double>(dry.missing.size() + dry.unmapped.size() +
                                      2 * dry.misshapen.size() + dry.ungiven.size());
    left -= 0.8 * shared_shapes(dry);
    if (!dry.spec) left = 2.0 * static_cast<double>(tensors_.tensors().size()) + 1;
    const Json& of_hf = draft.family.at("dialects").at(kHf);
    double cost = 100 * left / (left + static_cast<double>(dry.mapped) + 1);
    cost +=
        4 * static_cast<double>(dry.refused_keys()) + 8 * static_cast<double>(dry.errors.size());
    cost += 0.05 * size(of_hf, "names") + 0.1 * size(of_hf, "keys") + 0.5 * size(of_hf, "read");
    cost += 0.1 * size(draft.family, "tensors") + 0.5 * size(draft.family, "include");
    // of two that fit the one that reads fewer keys which the config lacks, and more of those that
    // it has, switched off or not
    const Dialect& dialect = set_.named(draft.base).dialect(kHf);
    const Json renamed = of_hf.value("keys", Json::object());
    size_t absent_keys = 0, unread_keys = 0;
    for (const std::string& key : dialect.claims) {
      const std::string first = key.substr(0, key.find('.'));
      absent_keys += config_.contains(first) || renamed.contains(first) ? 0 : 1;
    }
    for (const auto& [key, value] : config_.items())
      unread_keys += claims(dialect, key) || is_value(renamed, key) ? 0 : 1;
    return cost + 0.02 * static_cast<double>(absent_keys) + 0.1 * static_cast<double>(unread_keys);
  }

  /// How many of the missing and the unmapped tensors have a shape in common: of files with other
  /// names.
  double shared_shapes(const DryRun& dry) const {
    std::map<Dims, int> wanted;
    for (const DryRun::Missing& missing : dry.missing)
      if (missing.alone && missing.shapes.size() == 1) ++wanted[missing.shapes.front()];
    size_t shared = 0;
    for (const std::string& name : dry.unmapped)
      if (const TensorView* tensor = find(name); tensor != nullptr && wanted[tensor->shape]-- > 0)
        shared += 2;
    return static_cast<double>(shared);
  }

  const TensorView* find(const std::string& name) const {
    for (const format::UnsupportedTensor& tensor : tensors_.unsupported())
      if (tensor.name == name) return nullptr;
    return tensors_.find(name);
  }

  void refine(Draft& draft) {
    for (int round = 0; round < kRounds && !draft.dry.complete(); ++round) {
      const bool keys = infer_keys(draft);
      const bool names = !keys && map_tensors(draft);
      if (!keys && !names) return;
    }
  }

  /// Takes a changed draft where it leaves less over.
  bool take_if_better(Draft& draft, Draft&& changed) {
    update(changed);
    if (changed.cost >= draft.cost) return false;
    draft = std::move(changed);
    return true;
  }

  // --- keys that no family knows ---

  bool infer_keys(Draft& draft) {
    const Dialect& dialect = set_.named(draft.base).dialect(kHf);
    KeysOfValues own;
    add_keys_of(set_.named(draft.base), own);
    std::set<std::string> wanted;
    for (const auto& [value, keys] : own)
      for (const auto& [key, n] : keys)
        if (key.find('.') == std::string::npos && !config_.contains(key)) wanted.insert(key);
    Draft changed = draft;
    bool any = false;
    for (const DryRun::Key& key : draft.dry.keys) {
      if (!key.readers.empty() || key.path.find('.') != std::string::npos) continue;
      std::string best;
      double most = 0.49;
      for (const std::string& name : wanted) {
        if (hf(changed).contains("keys") && hf(changed)["keys"].contains(name)) continue;
        const double like = likeness_of_keys(name, key.path);
        if (like > most) {
          most = like;
          best = name;
        }
      }
      if (best.empty() || dialect.claims.contains(key.path)) continue;
      hf(changed)["keys"][best] = key.path;
      changed.unsure.push_back(inferred_key(key.path, best));
      any = true;
    }
    return any && take_if_better(draft, std::move(changed));
  }

  // --- tensors by other names ---

  bool map_tensors(Draft& draft) {
    if (!draft.dry.spec) return false;
    TensorGroups expected, found;
    std::map<std::string, int64_t> sources;  // of a parameter, by the first of its rule
    for (const DryRun::Missing& missing : draft.dry.missing) ++sources[missing.ours.front()];
    for (const DryRun::Missing& missing : draft.dry.missing) {
      if (std::any_of(missing.shapes.begin(), missing.shapes.end(),
                      [](const Dims& shape) { return shape.empty(); }))
        continue;
      int64_t count = 0;
      for (const Dims& shape : missing.shapes) count += count_of(shape);
      const NumberedName name = numbered(missing.name);
      expected[name.pattern].members.push_back({name.numbers, missing.shapes, missing.ours,
                                                missing.steps, missing.alone,
                                                count / sources[missing.ours.front()]});
    }
    for (const std::string& file : draft.dry.unmapped)
      if (const TensorView* tensor = find(file); tensor != nullptr) {
        const NumberedName name = numbered(file);
        found[name.pattern].members.push_back({name.numbers, {tensor->shape}, {}, false, true, 0});
      }
    sort_members(expected);
    sort_members(found);
    Draft changed = draft;
    // first by words, then products, and by shapes alone what is left
    bool any = rename(changed, expected, found, kLeastLikeness);
    any = pack(changed, expected, found) || any;
    any = unpack(changed, expected, found) || any;
    any = rename(changed, expected, found, -1) || any;
    return any && take_if_better(draft, std::move(changed));
  }

  struct Pair {
    double like;
    std::string base, file;
    Fit fit;
  };

  /// TensorGroups that are one tensor each; those that were matched leave.
  bool rename(Draft& draft, TensorGroups& expected, TensorGroups& found, double least) {
    std::vector<Pair> pairs;
    std::map<std::string, int> fits_base, fits_file;
    for (const auto& [base, want] : expected)
      for (const auto& [file, have] : found)
        if (const Fit fit = fit_of(want, have); fit != Fit::none) {
          const double like = likeness(base, file);
          pairs.push_back({like - (fit == Fit::exact ? 0 : 0.05), base, file, fit});
          ++fits_base[base];
          ++fits_file[file];
        }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& a, const Pair& b) { return a.like > b.like; });
    std::set<std::string> used_base, used_file;
    std::vector<Pair> taken;
    size_t turned = 0, straight = 0;
    for (const Pair& pair : pairs) {
      if (used_base.contains(pair.base) || used_file.contains(pair.file)) continue;
      const bool only = fits_base[pair.base] == 1 && fits_file[pair.file] == 1;
      if (pair.like < least || (pair.like < kLeastLikeness && !only)) continue;
      if (pair.like < kLeastLikeness)
        draft.unsure.push_back(fmt::format("tensor \"{}\" is taken for \"{}\" by its shape alone",
                                           pair.file, pair.base));
      const auto rival = std::find_if(pairs.begin(), pairs.end(), [&](const Pair& other) {
        return other.base == pair.base && other.file != pair.file &&
               !used_file.contains(other.file) && other.like > pair.like - 0.02;
      });
      if (rival != pairs.end() && pair.like >= kLeastLikeness)
        draft.unsure.push_back(fmt::format("\"{}\" is read from \"{}\"; \"{}\" fits as well",
                                           pair.base, pair.file, rival->file));
      used_base.insert(pair.base);
      used_file.insert(pair.file);
      taken.push_back(pair);
      const Dims& shape = found[pair.file].members.front().shapes.front();
      const bool matrix = shape.size() == 2 && pair.base.find('*') != std::string::npos;
      if (matrix && pair.fit == Fit::turned) ++turned;
      if (matrix && pair.fit == Fit::exact && shape[0] != shape[1]) ++straight;
    }
    Json names = hf(draft).value("names", Json::object());
    for (Pair& pair : taken) {
      const TensorGroup::Member& want = expected[pair.base].members.front();
      const Dims& shape = found[pair.file].members.front().shapes.front();
      const bool square = shape.size() == 2 && shape[0] == shape[1] && pair.fit == Fit::exact &&
                          pair.base.find('*') != std::string::npos;
      if (square && turned > 0 && straight == 0) {
        draft.unsure.push_back(fmt::format(
            "\"{}\" is square; it is turned over as the other matrices of its layer are",
            pair.file));
        pair.fit = Fit::turned;
      }
      if (pair.fit == Fit::turned && std::count(pair.base.begin(), pair.base.end(), '*') <= 1)
        add_rule(draft, expected[pair.base], want.ours, pair.file,
                 Json::array({{{"transpose", {1, 0}}}}));
      else
        names[pair.base] = pair.file;
    }
    if (!names.empty()) hf(draft)["names"] = shortened(names);
    for (const Pair& pair : taken) {
      expected.erase(pair.base);
      found.erase(pair.file);
    }
    return !taken.empty();
  }

  /// Renames of several tensors of one module, or one prefix, as one.
  static Json shortened(const Json& names) {
    const auto module_of = [](std::string_view base, std::string_view file) {
      // what is left of both without the words at their ends that are the same
      while (true) {
        const size_t a = base.rfind('.'), b = file.rfind('.');
        if (a == std::string_view::npos || b == std::string_view::npos ||
            base.substr(a) != file.substr(b) || base.substr(a) == ".*")
          break;
        base = base.substr(0, a);
        file = file.substr(0, b);
      }
      return std::pair(std::string(base), std::string(file));
    };
    std::map<std::string, std::map<std::string, std::vector<std::string>>> modules;
    for (const auto& [base, file] : names.items()) {
      const auto [from, to] = module_of(base, file.get<std::string>());
      modules[from][to].push_back(base);
    }
    Json out = Json::object();
    std::set<std::string> done;
    for (const auto& [from, targets] : modules) {
      if (targets.size() != 1 || targets.begin()->second.size() < 2) continue;
      const auto& [to, members] = *targets.begin();
      if (from == members.front() || from.empty() || to.empty()) continue;
      out[from + ".*"] = to + ".*";
      done.insert(members.begin(), members.end());
    }
    for (const auto& [base, file] : names.items())
      if (!done.contains(base)) out[base] = file;
    return out;
  }

  // --- products that are packed ---

  /// A number by the name of a value where it is one, else itself.
  Json number(int64_t wanted, std::initializer_list<const char*> expressions) const {
    const auto value = [&](const char* name) -> int64_t {
      const auto found = values_.find(name);
      return found != values_.end() && found->second.is_number_integer()
                 ? found->second.get<int64_t>()
                 : -1;
    };
    for (const std::string_view expression : expressions) {
      int64_t result = value("d_hidden");
      if (expression == "n_heads * head_dim") result = value("n_heads") * value("head_dim");
      if (expression == "n_kv_heads * head_dim") result = value("n_kv_heads") * value("head_dim");
      if (result == wanted && value("head_dim") != -1) return "=" + std::string(expression);
      if (result == wanted && expression == "d_hidden") return "=d_hidden";
    }
    return wanted;
  }

  void add_rule(Draft& draft,
                const TensorGroup& group,
                const std::vector<std::string>& ours,
                const std::string& file,
                Json steps) {
    Json names = Json::array();
    for (const std::string& name : ours) names.push_back(looped(name));
    std::string foreign = file;
    if (const size_t star = foreign.find('*'); star != std::string::npos)
      foreign.replace(star, 1, "{i}");
    Json rule = {{"ours", names.size() == 1 ? names.front() : names}};
    rule[kHf] =
        steps.empty() ? Json(foreign) : Json{{"name", foreign}, {"steps", std::move(steps)}};
    Json& rules = draft.family["tensors"];
    if (group.members.front().numbers.empty()) {
      rules.push_back(rule);
      return;
    }
    std::vector<int64_t> numbers;
    for (const TensorGroup::Member& member : group.members)
      numbers.push_back(member.numbers.front());
    bool all = values_.contains("n_layers") && values_.at("n_layers") == numbers.size();
    for (size_t i = 0; i < numbers.size(); ++i) all = all && numbers[i] == static_cast<int64_t>(i);
    const std::string loop =
        all ? "i in range(n_layers)" : fmt::format("i in [{}]", fmt::join(numbers, ", "));
    if (!rules.empty() && rules.back().value("for", Json()) == loop)
      rules.back()["rules"].push_back(rule);
    else
      rules.push_back({{"for", loop}, {"rules", Json::array({rule})}});
  }

  /// Rotary rows of q and k of a spec whose rows lie in pairs, as files of the base have them.
  Json rotary_steps() const {
    const auto has = [&](const char* name) {
      const auto found = values_.find(name);
      return found != values_.end() && !is_absent(found->second);
    };
    if (!has("rope_layout") || !has("rotary_dim") || !has("n_kv_heads")) return Json::array();
    const auto both = [](const char* step) {
      return Json::array(
          {{{step, {{"heads", "=n_heads"}, {"rotary", "=rotary_dim"}}}, {"only", {0}}},
           {{step, {{"heads", "=n_kv_heads"}, {"rotary", "=rotary_dim"}}}, {"only", {1}}}});
    };
    if (!has("hf_pairs"))
      return Json::array({{{"$if", "rope_layout == 'interleaved'"}, {"then", both("interleave")}}});
    return Json::array(
        {{{"$if", "hf_pairs and rope_layout == 'half'"}, {"then", both("deinterleave")}},
         {{"$if", "not hf_pairs and rope_layout == 'interleaved'"}, {"then", both("interleave")}}});
  }

  /// Several of the base in one tensor of the file: queries, keys and values; gate and up.
  bool pack(Draft& draft, TensorGroups& expected, TensorGroups& found) {
    bool any = false;
    for (const std::vector<std::string>& roles :
         {std::vector<std::string>{"q", "k", "v"}, {"gate", "up"}, {"k", "v"}})
      for (const char* kind : {".weight", ".bias"}) {
        std::vector<std::string> parts;
        for (const std::string& role : roles)
          for (const auto& [base, want] : expected)
            if (base.ends_with(kind) && role_of(base) == role && want.members.front().alone &&
                want.members.front().ours.size() == 1 &&
                std::count(base.begin(), base.end(), '*') == 1) {
              parts.push_back(base);
              break;
            }
        if (parts.size() == roles.size()) any = pack_into(draft, parts, expected, found) || any;
      }
    return any;
  }

  bool pack_into(Draft& draft,
                 const std::vector<std::string>& parts,
                 TensorGroups& expected,
                 TensorGroups& found) {
    const TensorGroup& first = expected[parts.front()];
    std::vector<std::string> ours;
    Json sizes = Json::array();
    int64_t rows = 0;
    for (const std::string& part : parts) {
      const TensorGroup& group = expected[part];
      if (!group.same_numbers(first)) return false;
      const TensorGroup::Member& member = group.members.front();
      ours.push_back(member.ours.front());
      const int64_t n = member.shapes.front().front();
      rows += n;
      const std::string role = role_of(part);
      sizes.push_back(role == "q"                  ? number(n, {"n_heads * head_dim"})
                      : role == "k" || role == "v" ? number(n, {"n_kv_heads * head_dim"})
                                                   : number(n, {"d_hidden"}));
    }
    Dims straight = first.members.front().shapes.front();
    straight.front() = rows;
    const Dims turned(straight.rbegin(), straight.rend());
    std::string best;
    double most = -1;
    for (const auto& [file, have] : found) {
      const Dims& shape = have.members.front().shapes.front();
      if (!have.same_numbers(first) || (shape != straight && shape != turned)) continue;
      const std::string role = role_of(file);
      const bool named = role == "qkv" || role == "gate_up" || role == "kv";
      if (!role.empty() && !named) continue;
      const double like = named ? 1 : 0.5;
      if (like > most) {
        most = like;
        best = file;
      }
    }
    if (best.empty()) return false;
    const Dims& shape = found[best].members.front().shapes.front();
    Json steps = Json::array();
    if (shape != straight) steps.push_back({{"transpose", {1, 0}}});
    steps.push_back({{"split", {{"axis", 0}, {"sizes", sizes}}}});
    if (parts.size() == 3)
      for (const Json& step : rotary_steps()) steps.push_back(step);
    add_rule(draft, first, ours, best, steps);
    draft.unsure.push_back(
        fmt::format("\"{}\" holds {} one after another; rows in another order have the same shape",
                    best, fmt::join(parts, ", ")));
    for (const std::string& part : parts) expected.erase(part);
    found.erase(best);
    return true;
  }

  /// One tensor of the base that the file has in parts.
  bool unpack(Draft& draft, TensorGroups& expected, TensorGroups& found) {
    std::vector<std::string> done;
    for (const auto& [base, want] : expected) {
      const TensorGroup::Member& first = want.members.front();
      if (first.ours.size() < 2 || !first.alone || std::count(base.begin(), base.end(), '*') > 1)
        continue;
      std::vector<std::string> parts;
      for (size_t k = 0; k < first.ours.size(); ++k) {
        std::string best;
        double most = kLeastLikeness;
        for (const auto& [file, have] : found) {
          const double like = likeness(numbered(first.ours[k]).pattern, file);
          if (!have.same_numbers(want) || have.members.front().shapes.front() != first.shapes[k] ||
              contains(parts, file) || like <= most)
            continue;
          most = like;
          best = file;
        }
        if (best.empty()) break;
        parts.push_back(best);
      }
      if (parts.size() != first.ours.size()) continue;
      for (size_t k = 0; k < parts.size(); ++k) {
        add_rule(draft, want, {first.ours[k]}, parts[k], Json::array());
        found.erase(parts[k]);
      }
      done.push_back(base);
    }
    for (const std::string& base : done) expected.erase(base);
    return !done.empty();
  }

  // --- switches of the base, and parts that other families include ---

  /// Tensors and keys without a place.
  static size_t left_over(const Draft& draft) {
    const DryRun& dry = draft.dry;
    return dry.missing.size() + dry.unmapped.size() + dry.misshapen.size() + dry.ungiven.size() +
           dry.refused_keys();
  }

  void try_switches(Draft& draft) {
    const Json merged = set_.merged(draft.base);
    switches_.clear();
    const auto add = [&](const Json& values) {
      for (const auto& [name, value] : values.items()) switches_.insert(name);
    };
    add(merged.value("let", Json::object()));
    add(merged.at("dialects").at(kHf).value("read", Json::object()));
    for (int round = 0; round < kRounds && !draft.dry.complete(); ++round) {
      Draft best = draft;
      for (Draft& changed : variations(draft)) {
        update(changed);
        if (changed.cost < best.cost && left_over(changed) < left_over(draft))
          best = std::move(changed);
      }
      if (best.cost >= draft.cost) break;
      refine(best);
      draft = std::move(best);
    }
    switches_.clear();
  }

  /// A draft with one boolean of the base flipped, or one part of a decoder more.
  std::vector<Draft> variations(const Draft& draft) {
    evaluate(draft.family);
    std::vector<Draft> list;
    for (const std::string& name : switches_)
      if (const auto found = values_.find(name);
          found != values_.end() && found->second.is_boolean()) {
        list.push_back(draft);
        hf(list.back())["read"][name] = !found->second.get<bool>();
      }
    struct FragmentSwitch {
      const char* fragment;
      Json read = Json::object();
    };
    static const std::vector<FragmentSwitch> parts = {
        {"head_norms", {{"qk_norm_over", "head"}}},
        {"head_norms", {{"qk_norm_over", "projection"}}},
        {"late_windows"},
        {"layer_norms"},
        {"ungated"}};
    for (const auto& [fragment, read] : parts) {
      const Json included = draft.family.value("include", Json::array());
      if (std::find(included.begin(), included.end(), fragment) != included.end()) continue;
      list.push_back(draft);
      list.back().family["include"] = included;
      list.back().family["include"].push_back(fragment);
      for (const auto& [name, value] : read.items()) hf(list.back())["read"][name] = value;
    }
    return list;
  }

  /// Of complete drafts that fit equally, the one whose spec has most in common with those of the
  /// others comes first: a peculiarity that neither keys nor shapes show is a rare one. What it
  /// differs in from the others is reported.
  static void prefer_typical(std::vector<Draft>& drafts) {
    using Members = std::map<std::string, std::set<std::string>>;
    std::vector<Members> specs;
    for (const Draft& draft : drafts) {
      if (!draft.dry.complete() || draft.cost > drafts.front().cost + kEqual) break;
      specs.push_back(members_of(*draft.dry.spec));
    }
    if (specs.size() < 2) return;
    std::map<std::string, std::map<std::set<std::string>, size_t>> votes;
    for (const Members& spec : specs)
      for (const auto& [path, values] : spec) ++votes[path][values];
    std::vector<size_t> common(specs.size(), 0);
    for (size_t i = 0; i < specs.size(); ++i)
      for (const auto& [path, of_path] : votes) {
        size_t with = specs.size();
        for (const auto& [values, count] : of_path) with -= count;  // those without the member
        if (const auto own = specs[i].find(path); own != specs[i].end())
          with = of_path.at(own->second);
        common[i] += with;
      }
    const size_t best =
        static_cast<size_t>(std::max_element(common.begin(), common.end()) - common.begin());
    const auto differences = [&](size_t other) {
      std::string text;
      constexpr size_t kMembers = 4;
      size_t count = 0;
      for (const auto& [path, values] : specs[other]) {
        const auto own = specs[best].find(path);
        if (own != specs[best].end() && own->second == values) continue;
        if (++count > kMembers) continue;
        text += fmt::format("{}{} = {}", count == 1 ? "" : ", ", path, fmt::join(values, " or "));
      }
      for (const auto& [path, values] : specs[best])
        if (!specs[other].contains(path) && ++count <= kMembers)
          text += fmt::format("{}no {}", count == 1 ? "" : ", ", path);
      return count <= kMembers ? text : fmt::format("{} and {} more", text, count - kMembers);
    };
    std::set<std::string> told;
    for (size_t i = 0; i < specs.size() && told.size() < kTold; ++i)
      if (const std::string what = differences(i); !what.empty() && told.insert(what).second)
        drafts[best].unsure.push_back(
            fmt::format("family {} fits equally; its spec has {}", drafts[i].base, what));
    std::rotate(drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(best),
                drafts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }

  Proposal finished(std::vector<Draft>& drafts) {
    Draft& draft = drafts.front();
    Proposal proposal;
    for (const DryRun::Key& key : draft.dry.keys)
      if (!key.readers.empty())
        draft.unsure.push_back(fmt::format(
            "key \"{}\" = {} has no place in the base; {} read it", key.path, shown(key.value),
            fmt::join(key.readers.begin(),
                      key.readers.begin() + std::min<std::ptrdiff_t>(3, std::ssize(key.readers)),
                      ", ")));
    if (!draft.unsure.empty()) draft.family["unsure"] = draft.unsure;
    proposal.type = type_;
    proposal.base = draft.base;
    proposal.family = draft.family;
    proposal.dry = std::move(draft.dry);
    proposal.unsure = draft.unsure;
    for (const Draft& other : drafts) proposal.nearest.emplace_back(other.base, other.cost);
    proposal.keys = config_.size();
    proposal.tensors = tensors_.tensors().size();
    return proposal;
  }

  const ProposeOptions& options_;
  std::string path_, type_, name_;
  Json config_;
  format::TensorFile tensors_;
  FamilySet set_;
  KeysOfValues keys_of_values_;
  std::map<std::string, Json> values_;  // of the draft that was evaluated last
  std::set<std::string> switches_;      // names of which values are kept too
};

/// A line for each member down to a depth, the rest in one.
void write_json(const Json& json, int depth, int most, std::string& text) {
  const auto indent = [&](int n) { text += "\n" + std::string(static_cast<size_t>(2 * n), ' '); };
  if (!json.is_structured() || json.empty() || depth >= most) {
    text += json.dump();
    return;
  }
  text += json.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    text += first ? "" : ",";
    first = false;
    indent(depth + 1);
    if (json.is_object()) text += Json(key).dump() + ": ";
    write_json(value, depth + 1, most, text);
  }
  indent(depth);
  text += json.is_object() ? "}" : "]";
}

}  // namespace

Proposal propose_family(const fs::path& folder, const ProposeOptions& options) {
  return Search(folder, options).run();
}

std::string family_text(const Json& family) {
  std::string text = "{";
  bool first = true;
  for (const auto& [key, value] : family.items()) {
    text += first ? "\n  " : ",\n  ";
    first = false;
    text += Json(key).dump() + ": ";
    // rules of a loop, and renames, a line each
    write_json(value, 1, key == "tensors" ? 4 : key == "dialects" ? 4 : 2, text);
  }
  return text + "\n}\n";
}

DryRun dry_run_of(FamilySet& families, const std::string& family, const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Json config = parse_hf_config(read_text_file(path, kMaxConfig), path.string());
  const format::TensorFile tensors = format::open_tensor_folder(folder);
  const Foreign foreign{kHf, config, &tensors, path.string()};
  return Importer(families.named(family), foreign, families).dry_run();
}

}  // namespace tessera::convert
