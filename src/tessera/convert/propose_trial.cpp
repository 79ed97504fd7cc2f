#include "tessera/convert/propose_trial.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/tensor_roles.h"
#include "tessera/spec/names.h"

namespace tessera::convert {

namespace {

/// Rules of a draft's own that split a matrix, which the base has in parts.
size_t fused_rules(const Json& family) {
  const std::string rules = family.value("tensors", Json::array()).dump();
  size_t count = 0;
  for (size_t at = 0; (at = rules.find("\"split\"", at)) != std::string::npos; ++at) ++count;
  return count;
}

/// Adds to a list of a family, once.
void add_entry(Json& family, const char* list, const Json& entry) {
  Json entries = family.value(list, Json::array());
  if (std::find(entries.begin(), entries.end(), entry) == entries.end()) entries.push_back(entry);
  family[list] = std::move(entries);
}

}  // namespace

size_t Draft::left_over() const {
  return dry.missing.size() + dry.unmapped.size() + dry.misshapen.size() + dry.ungiven.size() +
         dry.refused_keys();
}

bool Draft::fits() const {
  return dry.spec && dry.errors.empty() && left_over() == dry.refused_keys();
}

double Draft::rank() const {
  constexpr double kIncomplete = 6, kMisfit = 1000;
  return cost + (dry.complete() ? 0 : fits() ? kIncomplete : kMisfit);
}

void Draft::set(const std::string& value, Json expression) {
  hf()["read"][value] = std::move(expression);
}

void Draft::include(const std::string& fragment) {
  add_entry(family, "include", fragment);
}

void Draft::drop(const std::string& ours) {
  add_entry(family, "drop", "tensors." + ours);
}

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

void add_keys_of(const Family& family, KeysOfValues& to) {
  const auto dialect = family.dialects.find(kHf);
  if (dialect == family.dialects.end()) return;
  for (const auto& [value, body] : dialect->second.read)
    for (const std::string& key : direct_keys(body->text())) ++to[value][key];
}

Trial::Trial(const Evidence& evidence, const ProposeOptions& options)
    : evidence_(evidence), set_(FamilySet::load(options.families)) {
  for (const std::string& name : options.hidden) set_.hide(name);
  const std::vector<std::string> known = set_.types(kHf);
  if (std::find(known.begin(), known.end(), evidence.type()) != known.end())
    fail(ErrorKind::usage, "families",
         "model type \"{}\" is known: it loads as it is; expected a type that no family reads",
         evidence.type());
  for (const char c : evidence.type())
    name_ += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '_';
  const std::vector<std::string> names = set_.names();
  while (std::find(names.begin(), names.end(), name_) != names.end()) name_ += "_";
  for (const std::string& name : names) try {
      const Family& family = set_.named(name);
      add_keys_of(family, keys_of_values_);
      const auto dialect = family.dialects.find(kHf);
      if (dialect != family.dialects.end() && !dialect->second.inherited) bases_.push_back(name);
    } catch (const Error& error) {
      // a broken file of the user's is no base
      if (error.kind() == ErrorKind::internal) throw;
    }
  foreign_ = {kHf, evidence.config(), &evidence.tensors(), evidence.config_path()};
}

bool Trial::claims(const Dialect& dialect, const std::string& key) const {
  const auto at = dialect.claims.lower_bound(key);
  return dialect.ignores_key(key) || matches_any(key, set_.metadata_keys(kHf)) ||
         (at != dialect.claims.end() && (*at == key || at->starts_with(key + ".")));
}

std::vector<std::string> Trial::readers_of(const std::string& key) {
  std::vector<std::string> readers = set_.readers_of(kHf, key);
  std::erase(readers, name_);
  return readers;
}

Importer* Trial::compile(const Json& family, std::string& error) {
  importer_.reset();
  compiled_ = family;
  set_.hide(name_);
  try {
    set_.add_user(family.dump(), name_ + ".json", false);
    importer_ = std::make_unique<Importer>(set_.named(name_), foreign_, set_);
  } catch (const Error& caught) {
    if (caught.kind() == ErrorKind::internal) throw;
    error = caught.what();
  }
  return importer_.get();
}

void Trial::update(Draft& draft) {
  std::string error;
  if (Importer* importer = compile(draft.family, error)) {
    draft.dry = importer->dry_run();
    for (DryRun::Key& key : draft.dry.keys) std::erase(key.readers, name_);
  } else {
    draft.dry = {};
    draft.dry.errors.push_back(error);
  }
  draft.cost = cost_of(draft);
}

namespace {

/// Other values of a key than its own.
std::vector<Json> other_values(const Json& value) {
  if (value.is_boolean()) return {!value.get<bool>()};
  if (value.is_number_integer()) return {value.get<int64_t>() + 1, value.get<int64_t>() - 1};
  if (value.is_number()) return {2 * value.get<double>() + 1};
  if (value.is_string()) return {value.get<std::string>() + "?"};
  if (!value.is_array() || value.empty()) return {};
  Json reversed = value, changed = value;
  std::reverse(reversed.begin(), reversed.end());
  const std::vector<Json> first = other_values(value.front());
  if (!first.empty()) changed.front() = first.front();
  return {reversed, changed};
}

Json* member_of(Json& config, std::string_view path) {
  Json* at = &config;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string key(path.substr(0, dot));
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &at->at(key);
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

bool asks_the_same(const DryRun& a, const DryRun& b) {
  return a.spec_json == b.spec_json && a.errors == b.errors && a.mapped == b.mapped &&
         a.missing.size() == b.missing.size() && a.unmapped == b.unmapped &&
         a.ungiven == b.ungiven && a.misshapen.size() == b.misshapen.size();
}

}  // namespace

bool Trial::takes_effect(const Draft& draft, const std::string& path) {
  std::string error;
  if (compile(draft.family, error) == nullptr) return true;
  const Family& family = set_.named(name_);
  const auto run = [&](const Json& config) {
    Foreign foreign = foreign_;
    foreign.config = config;
    return Importer(family, foreign, set_).dry_run();
  };
  const DryRun usual = run(foreign_.config);
  Json config = foreign_.config;
  Json* const member = member_of(config, path);
  if (member == nullptr) return true;
  std::vector<Json> values = other_values(*member);
  values.emplace_back(nullptr);
  for (const Json& value : values) {
    *member = value;
    if (!asks_the_same(run(config), usual)) return true;
  }
  return false;
}

Json Trial::value(const Draft& draft, const std::string& name) {
  std::string error;
  if (compiled_ != draft.family) compile(draft.family, error);
  return importer_ ? importer_->value(name) : absent();
}

int64_t Trial::size(const Draft& draft, const std::string& name) {
  const Json found = value(draft, name);
  return !is_absent(found) && found.is_number_integer() ? found.get<int64_t>() : -1;
}

bool Trial::take_if_better(Draft& draft, Draft&& changed) {
  update(changed);
  if (changed.cost >= draft.cost) return false;
  draft = std::move(changed);
  return true;
}

bool Trial::take_if_no_worse(Draft& draft, Draft&& changed, const std::string& why) {
  update(changed);
  if (!changed.dry.spec || changed.dry.errors.size() > draft.dry.errors.size() ||
      (draft.dry.spec && changed.left_over() > draft.left_over()))
    return false;
  if (!why.empty()) changed.unsure.push_back(why);
  draft = std::move(changed);
  return true;
}

bool Trial::take_if_sound(Draft& draft, Draft&& changed) {
  update(changed);
  drop_unneeded(changed);
  if (!changed.dry.spec || changed.dry.errors.size() > draft.dry.errors.size()) return false;
  draft = std::move(changed);
  return true;
}

void Trial::drop_unneeded(Draft& draft) {
  if (!draft.dry.spec) return;
  const auto is_none = [](const std::vector<int64_t>& shape) { return shape.empty(); };
  bool any = false;
  for (const DryRun::Missing& missing : draft.dry.missing) {
    if (!std::all_of(missing.shapes.begin(), missing.shapes.end(), is_none)) continue;
    any = true;
    for (const std::string& ours : missing.ours) draft.drop(numbered(ours).pattern);
  }
  if (any) update(draft);
}

namespace {

/// Removes the entry that an error of a family file names, "hf.read.x" or "drop[2]".
bool remove_entry(Json& family, std::string_view path) {
  constexpr std::string_view kDrop = "drop[", kDialect = "hf.";
  if (path.starts_with(kDrop)) {
    const size_t index = std::stoul(std::string(path.substr(kDrop.size())));
    family.at("drop").erase(index);
    if (family.at("drop").empty()) family.erase("drop");
    return true;
  }
  if (!path.starts_with(kDialect)) return false;
  path.remove_prefix(kDialect.size());
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return false;
  Json& hf = family.at("dialects").at(kHf);
  const auto section = hf.find(path.substr(0, dot));
  path.remove_prefix(dot + 1);
  if (section == hf.end() || !section->is_object()) return false;
  std::string found;
  for (const auto& [key, value] : section->items())
    if (path.starts_with(key) && key.size() > found.size()) found = key;
  return !found.empty() && section->erase(found) > 0;
}

}  // namespace

void Trial::tidy(Draft& draft) {
  constexpr int kMost = 32;
  for (int i = 0; i < kMost; ++i) {
    update(draft);
    try {
      set_.check_names(name_);
      return;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      const std::string_view text = error.what();
      const std::string begin = "[" + name_ + ".";
      const size_t end = text.find("] ");
      if (!text.starts_with(begin) || end == std::string_view::npos ||
          !remove_entry(draft.family, text.substr(begin.size(), end - begin.size())))
        return;
    }
  }
}

namespace {

/// A key that many families read is of this kind of model; one that few do may be by chance.
double refusal_of(const DryRun::Key& key) {
  constexpr size_t kFew = 2;
  constexpr double kOfMany = 4, kOfFew = 2;
  return key.readers.empty() ? 0 : key.readers.size() > kFew ? kOfMany : kOfFew;
}

}  // namespace

/// What a draft leaves over, and how much it asks of its base.
double Trial::cost_of(const Draft& draft) {
  const DryRun& dry = draft.dry;
  const auto size = [](const Json& json, const char* key) {
    const auto found = json.find(key);
    return found == json.end() ? 0.0 : static_cast<double>(found->size());
  };
  double left = static_cast<double>(dry.missing.size() + dry.unmapped.size() +
                                    2 * dry.misshapen.size() + dry.ungiven.size());
  left -= 0.8 * shared_shapes(dry);
  if (!dry.spec) left = 2.0 * static_cast<double>(evidence_.tensors().tensors().size()) + 1;
  const Json& of_hf = draft.family.at("dialects").at(kHf);
  double cost = 100 * left / (left + static_cast<double>(dry.mapped) + 1);
  for (const DryRun::Key& key : dry.keys) cost += refusal_of(key);
  cost += 8 * static_cast<double>(dry.errors.size());
  cost += 0.05 * size(of_hf, "names") + 0.1 * size(of_hf, "keys") + 0.5 * size(of_hf, "read");
  cost += 0.1 * size(draft.family, "tensors") + 0.5 * size(draft.family, "include") +
          0.1 * size(draft.family, "drop") + 0.4 * static_cast<double>(fused_rules(draft.family)) +
          static_cast<double>(draft.doubtful);
  // of two that fit the one that reads fewer keys which the config lacks, and more of those that it
  // has, switched off or not
  const Dialect& dialect = dialect_of(draft.base);
  const Json renamed = of_hf.value("keys", Json::object());
  const auto is_target = [&](const std::string& key) {
    return std::find(renamed.begin(), renamed.end(), Json(key)) != renamed.end();
  };
  size_t absent_keys = 0, unread_keys = 0;
  for (const std::string& key : dialect.claims) {
    const std::string first = key.substr(0, key.find('.'));
    absent_keys += evidence_.config().contains(first) || renamed.contains(first) ? 0 : 1;
  }
  for (const auto& [key, value] : evidence_.config().items())
    unread_keys += claims(dialect, key) || is_target(key) ? 0 : 1;
  return cost + 0.02 * static_cast<double>(absent_keys) + 0.1 * static_cast<double>(unread_keys);
}

/// How many of the missing and the unmapped tensors have a shape in common: of files with other
/// names.
double Trial::shared_shapes(const DryRun& dry) const {
  std::map<std::vector<int64_t>, int> wanted;
  for (const DryRun::Missing& missing : dry.missing) {
    if (missing.shapes.size() != 1 || missing.shapes.front().empty()) continue;
    const std::vector<int64_t>& shape = missing.shapes.front();
    // of those that are stacked, the first dimension is their number
    ++wanted[missing.alone ? shape : std::vector<int64_t>(shape.begin() + 1, shape.end())];
  }
  size_t shared = 0;
  for (const std::string& name : dry.unmapped)
    if (const format::TensorView* tensor = evidence_.find(name);
        tensor != nullptr && wanted[tensor->shape]-- > 0)
      shared += 2;
  return static_cast<double>(shared);
}

}  // namespace tessera::convert
