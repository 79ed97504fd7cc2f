#include "tessera/convert/family.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family_json.h"
#include "tessera/spec/names.h"

namespace tessera::convert {

using namespace family_json;

namespace {

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

void mark_inherited(TensorRule& rule) {
  rule.inherited = true;
  for (TensorRule& child : rule.rules) mark_inherited(child);
}

// --- dialects and families --------------------------------------------------------------------

Dialect dialect_of(const Json& json, const std::string& where) {
  spec::check_keys(json,
                   {"types", "when", "lift", "read", "write", "read_only", "written", "fixed",
                    "expect", "ignored_keys", "ignored_tensors", "ignored_heads", "claims",
                    "remark", "about", "names", "keys", "inherited"},
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
           "found {}; expected {{\"key of the base\": \"key of the file\"}}", spec::kind_of(*keys));
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
  spec::check_keys(
      json,
      {"family", "fragment", "about", "include", "$schema", "tables", "functions", "let", "values",
       "spec", "tensors", "dialects", "base", "drop", "unsure", "base_tensors", "meanings"},
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
    if (std::find(std::begin(kDialects), std::end(kDialects), kind) == std::end(kDialects))
      fail(ErrorKind::spec, name + ".dialects." + kind, "unknown dialect{}; expected {}",
           spec::did_you_mean(kind, {std::begin(kDialects), std::end(kDialects)}),
           fmt::join(kDialects, ", "));
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
