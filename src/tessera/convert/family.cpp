#include "tessera/convert/family.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family_files.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/spec/names.h"

namespace tessera::convert {
namespace {

constexpr size_t kMaxFamilyBytes = size_t{4} << 20;
constexpr int kMaxIncludes = 32;

const Json* get(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

std::string string_of(const Json& json, const std::string& where) {
  if (!json.is_string())
    fail(ErrorKind::spec, where, "found {}; expected a string", spec::kind_of(json));
  return json.get<std::string>();
}

std::vector<std::string> strings_of(const Json& json, const std::string& where) {
  if (!json.is_array())
    fail(ErrorKind::spec, where, "found {}; expected a list of strings", spec::kind_of(json));
  std::vector<std::string> list;
  for (const Json& item : json) list.push_back(string_of(item, where));
  return list;
}

std::map<std::string, std::string> reasons_of(const Json* json, const std::string& where) {
  std::map<std::string, std::string> reasons;
  if (json == nullptr) return reasons;
  if (!json->is_object())
    fail(ErrorKind::spec, where, "found {}; expected {{\"name\": \"why\"}}", spec::kind_of(*json));
  for (const auto& [key, why] : json->items()) reasons[key] = string_of(why, where + "." + key);
  return reasons;
}

NamedTemplates templates_of(const Json* json, const std::string& where) {
  NamedTemplates list;
  if (json == nullptr) return list;
  if (!json->is_object())
    fail(ErrorKind::spec, where, "found {}; expected an object", spec::kind_of(*json));
  for (const auto& [key, value] : json->items())
    list.emplace_back(key, Template::compile(value, where + "." + key));
  return list;
}

// --- tensor rules -----------------------------------------------------------------------------

/// "a.weight | a.gamma": spellings of one name.
std::vector<NamePattern> spellings_of(std::string_view text, const std::string& where) {
  std::vector<NamePattern> spellings;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(" | ", begin), text.size());
    spellings.push_back(NamePattern::parse(text.substr(begin, end - begin), where));
    begin = end + 3;
  }
  return spellings;
}

/// A name, {"for": "h in range(n)", "name": "..."}, or a list of these.
std::vector<RuleName> names_of(const Json& json, const std::string& where) {
  std::vector<RuleName> names;
  if (json.is_array()) {
    for (const Json& item : json)
      for (RuleName& name : names_of(item, where)) names.push_back(std::move(name));
    return names;
  }
  if (!json.is_object()) return {{std::nullopt, spellings_of(string_of(json, where), where)}};
  spec::check_keys(json, {"for", "name"}, where);
  const Json *loop = get(json, "for"), *name = get(json, "name");
  if (loop == nullptr || name == nullptr)
    fail(ErrorKind::spec, where, "expected {{\"for\": \"i in list\", \"name\": \"...\"}}");
  names.push_back({Loop::parse(string_of(*loop, where + ".for"), where + ".for"),
                   spellings_of(string_of(*name, where + ".name"), where + ".name")});
  return names;
}

ForeignSide side_of(const Json& json, const std::string& where) {
  ForeignSide side;
  const Json* names = &json;
  if (json.is_object() && !json.contains("for")) {
    spec::check_keys(json, {"name", "steps"}, where);
    names = get(json, "name");
    if (names == nullptr) fail(ErrorKind::spec, where, "\"name\" is missing");
    if (const Json* steps = get(json, "steps"))
      side.steps = TensorSteps::compile(*steps, where + ".steps");
  }
  side.names = names_of(*names, where);
  return side;
}

TensorRule rule_of(const Json& json,
                   const std::vector<std::string>& dialects,
                   const std::string& where) {
  std::vector<std::string> known = {"for",     "if",      "rules",  "ours", "keep",
                                    "same_as", "copy_of", "values", "why"};
  known.insert(known.end(), dialects.begin(), dialects.end());
  spec::check_keys(json, known, where);
  TensorRule rule;
  if (const Json* loop = get(json, "for"))
    rule.loop = Loop::parse(string_of(*loop, where + ".for"), where + ".for");
  if (const Json* condition = get(json, "if"))
    rule.condition = Expr::parse(string_of(*condition, where + ".if"), where + ".if");
  if (const Json* rules = get(json, "rules")) {
    if (!rules->is_array()) fail(ErrorKind::spec, where, "rules: expected a list");
    for (size_t i = 0; i < rules->size(); ++i)
      rule.rules.push_back(rule_of((*rules)[i], dialects, fmt::format("{}.rules[{}]", where, i)));
    return rule;
  }
  using Kind = TensorRule::Kind;
  const Json* named = nullptr;
  int n_kinds = 0;
  for (const auto& [key, kind] : {std::pair{"ours", Kind::convert},
                                  {"same_as", Kind::same_as},
                                  {"copy_of", Kind::copy_of},
                                  {"keep", Kind::keep},
                                  {"values", Kind::values}})
    if (const Json* found = get(json, key)) {
      named = found;
      rule.kind = kind;
      ++n_kinds;
    }
  if (n_kinds != 1)
    fail(ErrorKind::spec, where,
         "expected exactly one of \"ours\", \"same_as\", \"copy_of\", \"keep\", \"values\" and "
         "\"rules\"");
  const auto add_sides = [&] {
    for (const std::string& dialect : dialects)
      if (const Json* side = get(json, dialect.c_str()))
        rule.sides[dialect] = side_of(*side, where + "." + dialect);
  };
  if (rule.kind == Kind::values) {
    rule.values = Expr::parse(string_of(*named, where + ".values"), where + ".values");
    add_sides();
    for (const auto& [dialect, side] : rule.sides)
      if (side.names.size() != 1 || side.names[0].loop)
        fail(ErrorKind::spec, where, "\"values\" are those of one tensor");
    return rule;
  }
  rule.ours = names_of(*named, where);
  for (const RuleName& name : rule.ours)
    if (name.spellings.size() != 1) fail(ErrorKind::spec, where, "a name of ours has one spelling");
  if (rule.kind != Kind::convert && (rule.ours.size() != 1 || rule.ours[0].loop))
    fail(ErrorKind::spec, where, "\"keep\", \"same_as\" and \"copy_of\" take one name");
  add_sides();
  return rule;
}

// --- dialects and families --------------------------------------------------------------------

Dialect dialect_of(const Json& json, const std::string& where) {
  spec::check_keys(
      json,
      {"types", "when", "lift", "read", "write", "read_only", "written", "fixed", "expect",
       "ignored_keys", "ignored_tensors", "ignored_heads", "claims", "remark", "about"},
      where);
  Dialect dialect;
  if (const Json* types = get(json, "types")) dialect.types = strings_of(*types, where + ".types");
  if (const Json* when = get(json, "when"))
    dialect.when = Expr::parse(string_of(*when, where + ".when"), where + ".when");
  if (const Json* lift = get(json, "lift")) dialect.lift = string_of(*lift, where + ".lift");
  dialect.read = templates_of(get(json, "read"), where + ".read");
  if (const Json* write = get(json, "write"); write != nullptr && !write->is_null())
    dialect.write = Template::compile(*write, where + ".write");
  if (const Json* why = get(json, "read_only"); why != nullptr && !why->is_null())
    dialect.read_only = string_of(*why, where + ".read_only");
  if ((dialect.write == nullptr) != !dialect.read_only.empty())
    fail(ErrorKind::spec, where,
         "expected either \"write\", or \"read_only\" with the reason why there is none");
  if (const Json* remark = get(json, "remark"))
    dialect.remark = Template::compile(*remark, where + ".remark");
  dialect.written = templates_of(get(json, "written"), where + ".written");
  dialect.fixed = templates_of(get(json, "fixed"), where + ".fixed");
  if (const Json* expect = get(json, "expect")) {
    if (!expect->is_object())
      fail(ErrorKind::spec, where, "expect: expected {{\"key\": [values]}}");
    for (const auto& [key, values] : expect->items()) {
      if (values.is_null()) continue;  // takes back what a fragment expects
      if (!values.is_array())
        fail(ErrorKind::spec, where, "expect.{}: expected the list of values it may have", key);
      dialect.expect[key] = values;
    }
  }
  dialect.ignored_keys = reasons_of(get(json, "ignored_keys"), where + ".ignored_keys");
  dialect.ignored_tensors = reasons_of(get(json, "ignored_tensors"), where + ".ignored_tensors");
  dialect.ignored_heads = reasons_of(get(json, "ignored_heads"), where + ".ignored_heads");
  if (const Json* claims = get(json, "claims"))
    for (const std::string& claim : strings_of(*claims, where + ".claims"))
      dialect.claims.insert(claim);
  for (const auto& [name, body] : dialect.read) body->collect_paths("config", dialect.claims);
  for (const auto& [key, values] : dialect.expect) dialect.claims.insert(key);
  if (dialect.when) dialect.when->collect_paths("config", dialect.claims);
  return dialect;
}

/// "name(a, b)": the name and the parameters.
std::pair<std::string, std::vector<std::string>> signature_of(const std::string& text,
                                                              const std::string& where) {
  const size_t open = text.find('(');
  if (open == std::string::npos || open == 0 || text.back() != ')')
    fail(ErrorKind::spec, where, "\"{}\"; expected \"name(parameter, ...)\"", text);
  std::vector<std::string> params;
  for (size_t begin = open + 1; begin < text.size() - 1;) {
    const size_t end = std::min(text.find(',', begin), text.size() - 1);
    std::string param = text.substr(begin, end - begin);
    param.erase(0, param.find_first_not_of(' '));
    if (param.empty() ||
        param.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
      fail(ErrorKind::spec, where, "\"{}\": a parameter is named \"{}\"", text, param);
    params.push_back(std::move(param));
    begin = end + 1;
  }
  return {text.substr(0, open), std::move(params)};
}

}  // namespace

void RuleName::each(Environment& env,
                    const Local* locals,
                    const std::function<void(const Local*)>& body) const {
  if (loop)
    loop->run(env, locals, body);
  else
    body(locals);
}

const Dialect& Family::dialect(std::string_view kind) const {
  const auto found = dialects.find(kind);
  if (found == dialects.end())
    fail(ErrorKind::usage, "convert", "family {} has no dialect \"{}\"", name, kind);
  return found->second;
}

bool Family::reads(std::string_view kind, const Json& config) const {
  const Dialect& of_kind = dialect(kind);
  if (!of_kind.when) return true;
  Environment env;
  env.constant("config", config);
  return of_kind.when->test(env);
}

void merge_family(Json& base, const Json& over) {
  for (const auto& [key, value] : over.items()) {
    Json& target = base[key];
    if (target.is_object() && value.is_object() && key != "spec" && key != "write")
      merge_family(target, value);
    else if (target.is_object() && value.is_object() && key == "write")
      target.update(value);
    else if (target.is_array() && value.is_array() && (key == "tensors" || key == "claims"))
      target.insert(target.end(), value.begin(), value.end());
    else
      target = value;
  }
}

Family compile_family(const Json& json, const std::string& name) {
  spec::check_keys(json,
                   {"family", "fragment", "about", "include", "tables", "functions", "let",
                    "values", "spec", "tensors", "dialects"},
                   name);
  Family family;
  family.name = name;
  if (const Json* about = get(json, "about")) family.about = string_of(*about, name + ".about");
  if (const Json* tables = get(json, "tables")) {
    if (!tables->is_object()) fail(ErrorKind::spec, name, "tables: expected an object");
    for (const auto& [key, table] : tables->items()) family.tables[key] = table;
  }
  if (const Json* functions = get(json, "functions")) {
    if (!functions->is_object()) fail(ErrorKind::spec, name, "functions: expected an object");
    for (const auto& [text, body] : functions->items()) {
      const std::string where = name + ".functions";
      auto [function, params] = signature_of(text, where);
      if (find_builtin(function) != nullptr)
        fail(ErrorKind::spec, where, "\"{}\" is a function of the language", function);
      family.functions[function] = {std::move(params),
                                    Template::compile(body, where + "." + function)};
    }
  }
  family.let = templates_of(get(json, "let"), name + ".let");
  family.values = templates_of(get(json, "values"), name + ".values");
  const Json* spec = get(json, "spec");
  if (spec == nullptr) fail(ErrorKind::spec, name, "\"spec\" is missing");
  family.spec = Template::compile(*spec, name + ".spec");
  const Json* dialects = get(json, "dialects");
  if (dialects == nullptr || !dialects->is_object() || dialects->empty())
    fail(ErrorKind::spec, name, "\"dialects\" is missing");
  std::vector<std::string> kinds;
  for (const auto& [kind, dialect] : dialects->items()) {
    kinds.push_back(kind);
    family.dialects[kind] = dialect_of(dialect, name + "." + kind);
  }
  // rules of fragments may speak of dialects that this family lacks
  for (const char* known : {"hf", "gguf", "llama2c", "ggmf"})
    if (std::find(kinds.begin(), kinds.end(), known) == kinds.end()) kinds.emplace_back(known);
  if (const Json* tensors = get(json, "tensors")) {
    if (!tensors->is_array()) fail(ErrorKind::spec, name, "tensors: expected a list of rules");
    for (size_t i = 0; i < tensors->size(); ++i)
      family.rules.push_back(rule_of((*tensors)[i], kinds, fmt::format("{}.tensors[{}]", name, i)));
  }
  return family;
}

void FamilySet::add_readers(const std::string& family, const Json& dialects) {
  for (const auto& [kind, dialect] : dialects.items()) {
    if (!dialect.is_object() || !dialect.contains("types")) continue;
    const int rank = (of_user_ ? 0 : 2) + (dialect.contains("when") ? 0 : 1);
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

void FamilySet::add(std::string_view name, std::string_view text, bool fragment) {
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
    fragments_.insert_or_assign(std::string(name), std::move(json));
    return;
  }
  if (!json.contains("family"))
    fail(ErrorKind::spec, name, "\"family\" is missing; expected a family file");
  const std::string family = string_of(json["family"], std::string(name) + ".family");
  if (const Json* dialects = get(json, "dialects"); dialects != nullptr && dialects->is_object())
    add_readers(family, *dialects);
  families_.insert_or_assign(family, Source{std::move(json), nullptr});
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

FamilySet FamilySet::load(const std::filesystem::path& user_folder) {
  FamilySet set;
  for (const EmbeddedFile& file : embedded_fragment_files()) set.add(file.name, file.text, true);
  for (const EmbeddedFile& file : embedded_family_files()) set.add(file.name, file.text, false);
  if (user_folder.empty()) return set;
  set.of_user_ = true;
  const auto add = [&](const std::filesystem::path& file, bool fragment) {
    set.add(file.stem().string(), read_text_file(file, kMaxFamilyBytes), fragment);
  };
  if (const auto shared = user_folder / "shared"; std::filesystem::is_directory(shared))
    for (const auto& file : json_files(shared)) add(file, true);
  for (const auto& file : json_files(user_folder)) add(file, false);
  return set;
}

const Family& FamilySet::of_type(std::string_view kind,
                                 std::string_view type,
                                 const Json& config,
                                 std::string_view where) {
  const auto of_kind = readers_.find(kind);
  if (of_kind != readers_.end() && !of_kind->second.empty()) {
    const auto found = type.empty() ? of_kind->second.begin() : of_kind->second.find(type);
    if (found != of_kind->second.end())
      for (const Reader& reader : found->second)
        // the last one says itself what it misses
        if (const Family& family = compile(reader.family);
            &reader == &found->second.back() || family.reads(kind, config))
          return family;
  }
  fail(ErrorKind::file, where,
       "model type {} is not known; known types: {}; another can be described by a file in "
       "--families DIR",
       shown(Json(std::string(type))), fmt::join(types(kind), ", "));
}

const Family& FamilySet::named(std::string_view name) {
  if (families_.find(name) == families_.end())
    fail(ErrorKind::usage, "families", "there is no family \"{}\"; known: {}", name,
         fmt::join(names(), ", "));
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
    for (const auto& [type, readers] : found->second) list.push_back(type);
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
    const auto& dialects = compile(name).dialects;
    const auto found = dialects.find(kind);
    if (found == dialects.end()) continue;
    const auto at = found->second.claims.lower_bound(std::string(path));
    if (at == found->second.claims.end()) continue;
    if (*at == path || (path.ends_with('.') && at->starts_with(path))) readers.push_back(name);
  }
  return readers;
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

const Family& FamilySet::compile(const std::string& name) {
  Source& source = families_.at(name);
  if (source.compiled) return *source.compiled;
  // fragments in the order they are named, those they include before them, the file itself on top
  Json merged = Json::object();
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
      add_included(found->second);
      merge_family(merged, found->second);
    }
  };
  add_included(source.json);
  merge_family(merged, source.json);
  source.compiled = std::make_shared<Family>(compile_family(merged, name));
  return *source.compiled;
}

bool matches_glob(std::string_view text, std::string_view glob) {
  size_t t = 0, g = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      mark = t;
    } else if (g < glob.size() && glob[g] == text[t]) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

bool matches_any(std::string_view text, const std::vector<std::string>& globs) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return matches_glob(text, glob); });
}

}  // namespace tessera::convert
