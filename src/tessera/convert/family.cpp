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
constexpr const char* kDialects[] = {"hf", "gguf", "llama2c", "ggmf"};
constexpr int kMaxBases = 8;                             // a base of a base of a base
constexpr std::string_view kDroppedTensors = "tensors.";  // of an entry of "drop"

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
    line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + std::min(at, text.size()),
                                           '\n'));
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
  return {error.kind(),
          line == 0 ? fmt::format("{}: {}", file, where) : fmt::format("{}:{}: {}", file, line, where),
          what};
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

void mark_inherited(TensorRule& rule) {
  rule.inherited = true;
  for (TensorRule& child : rule.rules) mark_inherited(child);
}

// --- dialects and families --------------------------------------------------------------------

Dialect dialect_of(const Json& json, const std::string& where) {
  spec::check_keys(
      json,
      {"types", "when", "lift", "read", "write", "read_only", "written", "fixed", "expect",
       "ignored_keys", "ignored_tensors", "ignored_heads", "claims", "remark", "about", "names",
       "keys", "inherited"},
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
  if (const Json* names = get(json, "names"))
    dialect.names = Renames::compile(*names, where + ".names");
  if (const Json* keys = get(json, "keys")) {
    if (!keys->is_object())
      fail(ErrorKind::spec, where + ".keys",
           "found {}; expected {{\"key of the base\": \"key of the file\"}}",
           spec::kind_of(*keys));
    for (const auto& [base, file] : keys->items()) {
      if (file.is_null()) continue;  // takes back one of the base
      dialect.keys.emplace_back(base, string_of(file, where + ".keys." + base));
      dialect.claims.insert(dialect.keys.back().second);
    }
  }
  dialect.inherited = json.contains("inherited");
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

bool Dialect::ignores_key(std::string_view path) const {
  return std::any_of(ignored_keys.begin(), ignored_keys.end(),
                     [&](const auto& entry) { return matches_glob(path, entry.first); });
}

bool Family::base_gives(const std::vector<std::string>& ours,
                        const std::set<std::string, std::less<>>& own) const {
  if (std::any_of(ours.begin(), ours.end(),
                  [&](const std::string& name) { return matches_any(name, dropped); }))
    return false;
  const auto given = std::count_if(ours.begin(), ours.end(),
                                   [&](const std::string& name) { return own.contains(name); });
  if (given > 0 && given < std::ssize(ours))
    fail(ErrorKind::spec, name + ".tensors",
         "{} of {} are given by rules of this file, and the base gives them together; expected all",
         given, fmt::join(ours, ", "));
  return given == 0;
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
                   {"family", "fragment", "about", "include", "$schema", "tables", "functions", "let",
                    "values", "spec", "tensors", "dialects", "base", "drop", "unsure",
                    "base_tensors"},
                   name);
  Family family;
  family.name = name;
  if (const Json* about = get(json, "about")) family.about = string_of(*about, name + ".about");
  if (const Json* base = get(json, "base")) family.base = string_of(*base, name + ".base");
  if (const Json* unsure = get(json, "unsure"))
    family.unsure = strings_of(*unsure, name + ".unsure");
  if (const Json* drop = get(json, "drop"))
    for (const std::string& entry : strings_of(*drop, name + ".drop"))
      if (entry.starts_with(kDroppedTensors))
        family.dropped.push_back(entry.substr(kDroppedTensors.size()));
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
  for (const char* known : kDialects)
    if (std::find(kinds.begin(), kinds.end(), known) == kinds.end()) kinds.emplace_back(known);
  if (const Json* tensors = get(json, "tensors")) {
    if (!tensors->is_array()) fail(ErrorKind::spec, name, "tensors: expected a list of rules");
    for (size_t i = 0; i < tensors->size(); ++i)
      family.rules.push_back(rule_of((*tensors)[i], kinds, fmt::format("{}.tensors[{}]", name, i)));
  }
  // the family's own come first, so that a rule of the base sees what they give
  if (const Json* tensors = get(json, "base_tensors"))
    for (const Json& rule : *tensors) {
      family.rules.push_back(rule_of(rule, kinds, family.base + ".tensors"));
      mark_inherited(family.rules.back());
    }
  return family;
}

namespace {

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
    if (const auto write = dialect.find("write");
        write != dialect.end() && write->is_object() && write->contains("model_type") &&
        types.is_array() && !types.empty())
      (*write)["model_type"] = types.front();
  }
  if (const Json* drop = get(own, "drop"))
    for (const std::string& path : strings_of(*drop, name + ".drop"))
      if (!path.starts_with(kDroppedTensors) && !erase_path(base, path))
        fail(ErrorKind::spec, name + ".drop", "\"{}\" is not in the base", path);
}

/// Values that a family's own file gives and nothing asks for: misspelt names.
void check_used(const Json& own, const Json& merged, const std::string& name) {
  const std::set<std::string> used = identifiers_of(merged);
  const auto check = [&](const Json* values, const std::string& where) {
    if (values == nullptr || !values->is_object()) return;
    for (const auto& [key, value] : values->items())
      if (!used.contains(key))
        fail(ErrorKind::spec, where + "." + key, "no expression of the family has this name{}",
             spec::did_you_mean(key, {used.begin(), used.end()}));
  };
  check(get(own, "let"), name + ".let");
  if (const Json* dialects = get(own, "dialects"); dialects != nullptr && dialects->is_object())
    for (const auto& [kind, dialect] : dialects->items())
      if (dialect.is_object()) check(get(dialect, "read"), name + "." + kind + ".read");
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
    fragments_.insert_or_assign(std::string(name), std::move(json));
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
  families_.insert_or_assign(
      family, Source{std::move(json), nullptr, file, file.empty() ? "" : std::string(text)});
}

void FamilySet::add_user(std::string_view text, const std::string& file) {
  of_user_ = true;
  const std::string name = std::filesystem::path(file).stem().string();
  try {
    add(name, text, false, file);
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
    if (source.json.value("base", Json()) == name) built_on.push_back(other);
  for (const std::string& other : built_on) hide(other);
}

Error FamilySet::located(const Error& error, std::string_view family) const {
  const auto found = families_.find(family);
  if (found == families_.end() || found->second.file.empty()) return error;
  const auto& [json, compiled, file, text] = found->second;
  // the spec is the family's: what is wrong with it is wrong in its file
  const std::string own = fmt::format("[{}", family);
  if (error.kind() == ErrorKind::spec && !std::string_view(error.what()).starts_with(own))
    return with_place({error.kind(), fmt::format("{}.spec", family), error.what()}, family, text, file);
  return with_place(error, family, text, file);
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

FamilySet FamilySet::load(const std::filesystem::path& user_folder) {
  FamilySet set;
  for (const EmbeddedFile& file : embedded_fragment_files())
    set.add(file.name, file.text, true, "");
  for (const EmbeddedFile& file : embedded_family_files())
    set.add(file.name, file.text, false, "");
  if (user_folder.empty()) return set;
  set.of_user_ = true;
  if (const auto shared = user_folder / "shared"; std::filesystem::is_directory(shared))
    for (const auto& file : json_files(shared)) set.add_file(file, true);
  for (const auto& file : json_files(user_folder)) set.add_file(file, false);
  return set;
}

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
        // the last one says itself what it misses
        if (const Family& family = compile(reader.family);
            &reader == &found->second.back() || family.reads(kind, config))
          return family;
    }
  }
  fail(ErrorKind::file, where,
       "model type {} is not known; known types: {}; another can be described by a file in "
       "--families DIR, which `tessera families propose` drafts{}",
       shown(Json(std::string(type))), fmt::join(types(kind), ", "), broken_text());
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

Json FamilySet::merged(const std::string& name, int depth) const {
  const auto known = families_.find(name);
  if (known == families_.end())
    fail(ErrorKind::spec, name, "\"base\" names no family{}", spec::did_you_mean(name, names()));
  const Json& own = known->second.json;
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
      add_included(found->second);
      merge_family(merged, found->second);
    }
  };
  add_included(own);
  merge_family(merged, own);
  return merged;
}

const Family& FamilySet::compile(const std::string& name) {
  Source& source = families_.at(name);
  if (source.compiled) return *source.compiled;
  try {
    const Json whole = merged(name);
    source.compiled = std::make_shared<Family>(compile_family(whole, name));
    if (!source.file.empty()) check_used(source.json, whole, name);
  } catch (const Error& error) {
    source.compiled = nullptr;
    if (source.file.empty()) throw;
    throw with_place(error, name, source.text, source.file);
  }
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
