// The set of families: files and fragments, what they build on, and which of them reads a type.
#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family.h"
#include "tessera/convert/family_check.h"
#include "tessera/convert/family_files.h"
#include "tessera/convert/family_json.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/spec_place.h"
#include "tessera/spec/names.h"

namespace tessera::convert {

using namespace family_json;

namespace {

constexpr size_t kMaxFamilyBytes = size_t{4} << 20;
constexpr int kMaxIncludes = 32;
constexpr int kMaxBases = 8;  // a base of a base of a base

/// "[quill.hf.read.x] what" as "[quill.json:12: quill.hf.read.x] what".
Error with_place(const Error& error,
                 std::string_view name,
                 std::string_view text,
                 const std::string& file) {
  const std::string_view message = error.what();
  const size_t end = message.find("] ");
  if (!message.starts_with('[') || end == std::string_view::npos || message.starts_with("[" + file))
    return error;
  const std::string_view where = message.substr(1, end - 1), what = message.substr(end + 2);
  int line = 0;
  if (constexpr std::string_view kByte = "byte "; what.starts_with(kByte)) {
    size_t at = 0;
    for (size_t i = kByte.size(); i < what.size() && what[i] >= '0' && what[i] <= '9'; ++i)
      at = at * 10 + static_cast<size_t>(what[i] - '0');
    line = 1 + static_cast<int>(
                   std::count(text.begin(), text.begin() + std::min(at, text.size()), '\n'));
  } else if (where.starts_with(name)) {
    std::string path(where.substr(name.size()));
    if (path.starts_with('.')) path.erase(0, 1);
    const std::string kind = path.substr(0, path.find('.'));
    for (const char* known : kDialects)
      if (kind == known) path = "dialects." + path;
    line = std::max(1, line_of(text, path));
  } else if (where != file) {
    return error;
  }
  return {
      error.kind(),
      line == 0 ? fmt::format("{}: {}", file, where) : fmt::format("{}:{}: {}", file, line, where),
      what};
}

constexpr int kUserRank = 1;  // of a reader: a file of the user's without a condition

/// The members of an inherited family that "a.b.c" names; keys may have dots. False = none.
bool erase_path(Json& json, std::string_view path) {
  if (!json.is_object()) return false;
  if (json.erase(std::string(path)) > 0) return true;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (const auto found = json.find(std::string(path.substr(0, dot)));
        found != json.end() && erase_path(*found, path.substr(dot + 1)))
      return true;
  return false;
}

/// What a family takes of its base: all but the types and the condition, by which the base knows
/// its own files.
void inherit(Json& base, const Json& own, const std::string& name) {
  for (const char* key : {"family", "about", "base", "unsure"}) base.erase(key);
  Json rules = base.value("tensors", Json::array());
  for (const Json& rule : base.value("base_tensors", Json::array())) rules.push_back(rule);
  base.erase("tensors");
  base["base_tensors"] = std::move(rules);
  const Json* dialects = get(own, "dialects");
  for (auto& [kind, dialect] : base["dialects"].items()) {
    const bool restated = dialects != nullptr && dialects->is_object() && dialects->contains(kind);
    dialect.erase("when");
    if (!restated) {
      dialect["inherited"] = true;
      continue;
    }
    dialect.erase("types");
    dialect.erase("inherited");
    const Json types = (*dialects)[kind].value("types", Json());
    if (const auto write = dialect.find("write"); write != dialect.end() && write->is_object() &&
                                                  write->contains("model_type") &&
                                                  types.is_array() && !types.empty())
      (*write)["model_type"] = types.front();
  }
  if (const Json* drop = get(own, "drop"))
    for (const std::string& path : strings_of(*drop, name + ".drop"))
      if (!path.starts_with(kDroppedTensors) && !erase_path(base, path))
        fail(ErrorKind::spec, name + ".drop", "\"{}\" is not in the base", path);
}

}  // namespace

void FamilySet::add_readers(const std::string& family, const Json& dialects) {
  for (const auto& [kind, dialect] : dialects.items()) {
    if (!dialect.is_object() || !dialect.contains("types")) continue;
    const int rank = (of_user_ ? 0 : 2) + (dialect.contains("when") ? 0 : kUserRank);
    for (const std::string& type : strings_of(dialect["types"], family + "." + kind + ".types")) {
      std::vector<Reader>& known = readers_[kind][type];
      std::erase_if(known, [&](const Reader& other) { return other.family == family; });
      const auto place = std::find_if(known.begin(), known.end(),
                                      [&](const Reader& other) { return other.rank >= rank; });
      known.insert(place, {family, rank});
    }
  }
}

void FamilySet::add_keys(const Json& lists, const std::string& where, KeyLists& to) {
  if (!lists.is_object())
    fail(ErrorKind::spec, where, "found {}; expected the keys of each dialect",
         spec::kind_of(lists));
  for (const auto& [kind, keys] : lists.items())
    for (const std::string& key : strings_of(keys, where)) to[kind].push_back(key);
}

void FamilySet::add(std::string_view name,
                    std::string_view text,
                    bool fragment,
                    const std::string& file) {
  spec::JsonLimits limits;
  limits.max_bytes = kMaxFamilyBytes;
  limits.comments = true;
  Json json = spec::parse_json(text, name, limits);
  if (!json.is_object())
    fail(ErrorKind::spec, name, "found {}; expected a family file", spec::kind_of(json));
  check_members(json, name, ErrorKind::spec);
  bool shared = false;
  for (const auto& [key, to] :
       {std::pair("unmathematical", &unmathematical_), std::pair("factors", &factors_),
        std::pair("null_where_zero", &null_where_zero_),
        std::pair("true_where_absent", &true_without_)})
    if (const Json* lists = get(json, key)) {
      add_keys(*lists, fmt::format("{}: {}", name, key), *to);
      shared = true;
    }
  if (shared) return;
  if (fragment || json.contains("fragment")) {
    fragments_.insert_or_assign(std::string(name), std::make_shared<const Json>(std::move(json)));
    return;
  }
  if (!json.contains("family"))
    fail(ErrorKind::spec, name, "\"family\" is missing; expected a family file");
  const std::string family = string_of(json["family"], std::string(name) + ".family");
  if (json.contains("base_tensors"))
    fail(ErrorKind::spec, name, "\"base_tensors\" are those of the base; expected \"tensors\"");
  if (const auto known = families_.find(family);
      known != families_.end() && !file.empty() && !known->second.file.empty())
    fail(ErrorKind::spec, name, "family \"{}\" is in {} already", family, known->second.file);
  if (const Json* dialects = get(json, "dialects"); dialects != nullptr && dialects->is_object())
    add_readers(family, *dialects);
  families_.insert_or_assign(family, Source{std::make_shared<const Json>(std::move(json)), nullptr,
                                            file, file.empty() ? "" : std::string(text)});
}

void FamilySet::add_user(std::string_view text, const std::string& file, bool checked) {
  of_user_ = true;
  const std::string name = std::filesystem::path(file).stem().string();
  try {
    add(name, text, false, file);
    for (auto& [family, source] : families_)
      if (source.file == file) source.checked = checked;
  } catch (const Error& error) {
    throw with_place(error, name, text, file);
  }
}

void FamilySet::add_file(const std::filesystem::path& path, bool fragment) {
  std::string text;
  const std::string name = path.stem().string();
  try {
    text = read_text_file(path, kMaxFamilyBytes);
    add(name, text, fragment, path.string());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::spec && error.kind() != ErrorKind::file) throw;
    broken_.emplace_back(with_place(error, name, text, path.string()).what());
  }
}

void FamilySet::hide(const std::string& name) {
  families_.erase(name);
  for (auto& [kind, types] : readers_)
    for (auto at = types.begin(); at != types.end();) {
      std::erase_if(at->second, [&](const Reader& reader) { return reader.family == name; });
      at = at->second.empty() ? types.erase(at) : std::next(at);
    }
  std::vector<std::string> built_on;
  for (const auto& [other, source] : families_)
    if (source.json->value("base", Json()) == name) built_on.push_back(other);
  for (const std::string& other : built_on) hide(other);
}

Error FamilySet::located(const Error& error, std::string_view family) const {
  const auto found = families_.find(family);
  if (found == families_.end() || found->second.file.empty()) return error;
  const Source& source = found->second;
  // the spec is the family's: what is wrong with it is wrong in its file
  const std::string own = fmt::format("[{}", family);
  if (error.kind() == ErrorKind::spec && !std::string_view(error.what()).starts_with(own)) {
    const std::string place = spec_place(merged(std::string(family)), *source.json, error.what());
    return with_place({error.kind(), fmt::format("{}.{}", family, place), error.what()}, family,
                      source.text, source.file);
  }
  return with_place(error, family, source.text, source.file);
}

std::string FamilySet::broken_text() const {
  if (broken_.empty()) return "";
  return fmt::format("; not read: {}", fmt::join(broken_, "; "));
}

namespace {

/// Paths of a folder's JSON files, sorted.
std::vector<std::filesystem::path> json_files(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  if (error)
    fail(ErrorKind::file, folder.string(), "cannot be read as a folder of families: {}",
         error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

const FamilySet& FamilySet::built_in() {
  static const FamilySet parsed = [] {
    FamilySet set;
    for (const EmbeddedFile& file : embedded_fragment_files())
      set.add(file.name, file.text, true, "");
    for (const EmbeddedFile& file : embedded_family_files())
      set.add(file.name, file.text, false, "");
    return set;
  }();
  return parsed;
}

FamilySet FamilySet::load(const std::filesystem::path& user_folder) {
  FamilySet set = built_in();
  if (user_folder.empty()) return set;
  set.of_user_ = true;
  if (const auto shared = user_folder / "shared"; std::filesystem::is_directory(shared))
    for (const auto& file : json_files(shared)) set.add_file(file, true);
  for (const auto& file : json_files(user_folder)) set.add_file(file, false);
  return set;
}

namespace {

/// " (did you mean "gemma2" or "gemma3"?)": the types of the fewest edits, and longer or shorter
/// names of the same beginning.
std::string nearest_types(std::string_view type, const std::vector<std::string>& known) {
  constexpr size_t kMost = 3, kLeastBeginning = 4;
  std::vector<std::string> near;
  if (std::string nearest = spec::nearest_name(type, known); !nearest.empty())
    near.push_back(std::move(nearest));
  for (const std::string& one : known) {
    const size_t common = std::min(one.size(), type.size());
    if (near.size() < kMost && common >= kLeastBeginning &&
        one.substr(0, common) == type.substr(0, common) &&
        std::find(near.begin(), near.end(), one) == near.end())
      near.push_back(one);
  }
  for (std::string& one : near) one = fmt::format("\"{}\"", one);
  return near.empty() ? "" : fmt::format(" (did you mean {}?)", fmt::join(near, " or "));
}

}  // namespace

const Family& FamilySet::of_type(std::string_view kind,
                                 std::string_view type,
                                 const Json& config,
                                 std::string_view where) {
  const auto of_kind = readers_.find(kind);
  if (of_kind != readers_.end() && !of_kind->second.empty()) {
    const auto found = type.empty() ? of_kind->second.begin() : of_kind->second.find(type);
    if (found != of_kind->second.end()) {
      std::vector<std::string> files;
      for (const Reader& reader : found->second)
        if (reader.rank == kUserRank) files.push_back(families_.at(reader.family).file);
      if (files.size() > 1)
        fail(ErrorKind::spec, where,
             "model type {} is claimed by {} files: {}; expected one, or \"when\" in the others",
             shown(Json(std::string(type))), files.size(), fmt::join(files, ", "));
      for (const Reader& reader : found->second)
        // the last one's own error says more
        if (const Family& family = compile(reader.family);
            &reader == &found->second.back() || family.reads(kind, config))
          return family;
    }
  }
  const bool folder = kind == "hf";
  fail(ErrorKind::file, where, "{} {} is not known{}; {}{}", folder ? "model type" : "architecture",
       shown(Json(std::string(type))), nearest_types(type, types(kind)),
       folder ? "`tessera families propose FOLDER --out DIR/NAME.json` drafts its family file for "
                "--families DIR; known types: `tessera list model-types`"
              : "a family file in --families DIR can describe it; known families: `tessera list "
                "families`",
       broken_text());
}

bool FamilySet::knows_untyped(std::string_view kind, const Json& config) {
  const auto of_kind = readers_.find(kind);
  if (of_kind == readers_.end()) return false;
  const auto found = of_kind->second.find("");
  return found != of_kind->second.end() &&
         std::any_of(found->second.begin(), found->second.end(), [&](const Reader& reader) {
           return compile(reader.family).reads(kind, config);
         });
}

const Family& FamilySet::named(std::string_view name) {
  if (families_.find(name) == families_.end())
    fail(ErrorKind::usage, "families", "there is no family \"{}\"; known: {}{}", name,
         fmt::join(names(), ", "), broken_text());
  return compile(std::string(name));
}

std::vector<std::string> FamilySet::names() const {
  std::vector<std::string> list;
  for (const auto& [name, source] : families_) list.push_back(name);
  return list;
}

std::vector<std::string> FamilySet::types(std::string_view kind) const {
  std::vector<std::string> list;
  if (const auto found = readers_.find(kind); found != readers_.end())
    for (const auto& [type, readers] : found->second)
      if (!type.empty()) list.push_back(type);
  return list;
}

const std::vector<std::string>& FamilySet::list_of(const KeyLists& lists, std::string_view kind) {
  static const std::vector<std::string> none;
  const auto found = lists.find(kind);
  return found == lists.end() ? none : found->second;
}

const std::vector<std::string>& FamilySet::metadata_keys(std::string_view kind) const {
  return list_of(unmathematical_, kind);
}

const std::vector<std::string>& FamilySet::null_where_zero(std::string_view kind) const {
  return list_of(null_where_zero_, kind);
}

std::vector<std::string> FamilySet::readers_of(std::string_view kind, std::string_view path) {
  std::vector<std::string> readers;
  for (const auto& [name, source] : families_) {
    const Family* family = nullptr;
    try {
      family = &compile(name);
    } catch (const Error&) {
      // a broken file of the user's stops no other family
      if (source.file.empty()) throw;
      continue;
    }
    const auto& dialects = family->dialects;
    const auto found = dialects.find(kind);
    if (found == dialects.end() || found->second.inherited) continue;
    const auto at = found->second.claims.lower_bound(std::string(path));
    if (at == found->second.claims.end()) continue;
    if (*at == path || (path.ends_with('.') && at->starts_with(path))) readers.push_back(name);
  }
  return readers;
}

std::set<std::string> FamilySet::members_read(std::string_view kind, const std::string& object) {
  std::set<std::string> members;
  for (const auto& [name, source] : families_) {
    if (!source.file.empty()) continue;
    const Family& family = compile(name);
    const auto found = family.dialects.find(kind);
    if (found == family.dialects.end() || found->second.inherited) continue;
    const std::set<std::string>& claims = found->second.claims;
    for (auto at = claims.lower_bound(object + "."); at != claims.end(); ++at) {
      if (!at->starts_with(object + ".")) break;
      members.insert(*at);
    }
  }
  return members;
}

bool FamilySet::switched_off(std::string_view kind,
                             std::string_view path,
                             const Json& value) const {
  if (value.is_null()) return true;
  if (value.is_array())
    return std::all_of(value.begin(), value.end(),
                       [&](const Json& element) { return switched_off(kind, path, element); });
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      if (!switched_off(kind, fmt::format("{}.{}", path, key), member)) return false;
    return true;
  }
  if (value.is_string()) return value == "" || value == "none";
  if (value.is_number() && value == 1) return matches_any(path, list_of(factors_, kind));
  if (value.is_number()) return value == 0;
  return value == false && !matches_any(path, list_of(true_without_, kind));
}

Json FamilySet::merged(const std::string& name) const {
  return merged(name, 0);
}

std::vector<std::string> FamilySet::fragments() const {
  std::vector<std::string> list;
  for (const auto& [name, json] : fragments_) list.push_back(name);
  return list;
}

const Json& FamilySet::file(const std::string& name) const {
  if (const auto family = families_.find(name); family != families_.end())
    return *family->second.json;
  if (const auto fragment = fragments_.find(name); fragment != fragments_.end())
    return *fragment->second;
  std::vector<std::string> known = names();
  for (std::string& fragment : fragments()) known.push_back(std::move(fragment));
  fail(ErrorKind::usage, "families",
       "there is no family \"{}\"{}; `tessera list families` has all{}", name,
       spec::did_you_mean(name, known), broken_text());
}

std::vector<std::string> FamilySet::files_of(const std::string& name) const {
  merged(name);  // whose limits bound what follows
  std::vector<std::string> list;
  const std::function<void(const std::string&)> add = [&](const std::string& one) {
    const Json& json = file(one);
    if (const Json* base = get(json, "base")) add(base->get<std::string>());
    if (const Json* include = get(json, "include"))
      for (const Json& fragment : *include) add(fragment.get<std::string>());
    std::erase(list, one);
    list.push_back(one);
  };
  add(name);
  return list;
}

Json FamilySet::merged(const std::string& name, int depth) const {
  Json merged = below(name, depth);
  merge_family(merged, *families_.at(name).json);
  return merged;
}

Json FamilySet::below(const std::string& name, int depth) const {
  const auto known = families_.find(name);
  if (known == families_.end())
    fail(ErrorKind::spec, name, "\"base\" names no family{}", spec::did_you_mean(name, names()));
  const Json& own = *known->second.json;
  Json merged = Json::object();
  if (const Json* base = get(own, "base")) {
    if (depth >= kMaxBases)
      fail(ErrorKind::spec, name, "more than {} families, each the base of the next", kMaxBases);
    const std::string base_name = string_of(*base, name + ".base");
    if (!families_.contains(base_name))
      fail(ErrorKind::spec, name + ".base", "there is no family \"{}\"{}", base_name,
           spec::did_you_mean(base_name, names()));
    merged = this->merged(base_name, depth + 1);
    inherit(merged, own, name);
  }
  // fragments in the order they are named, those they include first, the file itself on top
  int includes = 0;
  const std::function<void(const Json&)> add_included = [&](const Json& json) {
    const Json* include = get(json, "include");
    if (include == nullptr) return;
    for (const std::string& fragment : strings_of(*include, name + ".include")) {
      const auto found = fragments_.find(fragment);
      if (found == fragments_.end())
        fail(ErrorKind::spec, name, "include: there is no fragment \"{}\"", fragment);
      if (++includes > kMaxIncludes)
        fail(ErrorKind::spec, name, "more than {} includes", kMaxIncludes);
      add_included(*found->second);
      merge_family(merged, *found->second);
    }
  };
  add_included(own);
  return merged;
}

const Family& FamilySet::compile(const std::string& name) {
  Source& source = families_.at(name);
  if (source.compiled) return *source.compiled;
  try {
    const Json whole = merged(name);
    source.compiled = std::make_shared<Family>(compile_family(whole, name));
    if (!source.file.empty() && source.checked)
      check_family_names({*source.json, below(name, 0), whole, *source.compiled, *this});
  } catch (const Error& error) {
    source.compiled = nullptr;
    if (source.file.empty()) throw;
    throw with_place(error, name, source.text, source.file);
  }
  return *source.compiled;
}

void FamilySet::check_names(const std::string& name) {
  const Family& family = named(name);
  check_family_names({*families_.at(name).json, below(name, 0), merged(name), family, *this});
}

}  // namespace tessera::convert
