#include "tessera/text/grammar/json_schema_merge.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "tessera/base/error.h"

namespace tessera::text {

using spec::Json;

namespace {

constexpr size_t kMostSchemaAlternatives = 1000;
constexpr int kMostSchemaDepth = 64;

/// Keywords without effect on validation. Unknown ones are too, by the specification.
constexpr std::array kSchemaWords = {"type",
                                     "enum",
                                     "const",
                                     "properties",
                                     "required",
                                     "items",
                                     "prefixItems",
                                     "additionalProperties",
                                     "minItems",
                                     "maxItems",
                                     "uniqueItems",
                                     "contains",
                                     "minContains",
                                     "maxContains",
                                     "minLength",
                                     "maxLength",
                                     "pattern",
                                     "format",
                                     "minimum",
                                     "maximum",
                                     "exclusiveMinimum",
                                     "exclusiveMaximum",
                                     "multipleOf",
                                     "minProperties",
                                     "maxProperties",
                                     "patternProperties",
                                     "propertyNames",
                                     "dependentRequired",
                                     "dependentSchemas",
                                     "dependencies",
                                     "unevaluatedProperties",
                                     "unevaluatedItems",
                                     "not",
                                     "if",
                                     "then",
                                     "else",
                                     "allOf",
                                     "anyOf",
                                     "oneOf",
                                     "$ref",
                                     "$dynamicRef",
                                     "$recursiveRef",
                                     "additionalItems"};

bool is_schema_word(const std::string& key) {
  return std::any_of(kSchemaWords.begin(), kSchemaWords.end(),
                     [&](const char* k) { return key == k; });
}

std::vector<std::string> schema_types(const Json& schema) {
  std::vector<std::string> types;
  const auto found = schema.find("type");
  if (found == schema.end()) return {"object", "array", "string", "number", "boolean", "null"};
  if (found->is_string()) return {found->get<std::string>()};
  for (const Json& type : *found) types.push_back(type);
  return types;
}

bool holds(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

std::string SchemaMerger::type_of(const Json& value) const {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_string()) return "string";
  if (value.is_array()) return "array";
  if (value.is_object()) return "object";
  const double number = value.get<double>();
  return number == std::floor(number) ? "integer" : "number";
}

bool SchemaMerger::constrains(const Json& schema) const {
  if (!schema.is_object()) return schema.is_boolean() && !schema.get<bool>();
  for (const auto& [key, member] : schema.items())
    if (key != "type" && is_schema_word(key)) return true;
  return false;
}

const Json& SchemaMerger::resolve(const std::string& reference, const std::string& path) const {
  if (!reference.starts_with('#') || (reference.size() > 1 && reference[1] != '/'))
    fail(ErrorKind::input, where_,
         "unsupported schema: {}: $ref \"{}\"; expected a place within the schema, as in "
         "\"#/$defs/name\"",
         path, reference.substr(0, 100));
  const Json* at = &root_;
  for (size_t begin = 2; begin <= reference.size() && reference.size() > 1;) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    std::string part;
    for (size_t i = begin; i < end; ++i) {
      const char c = reference[i], next = i + 1 < end ? reference[i + 1] : '\0';
      unsigned code = 0;
      if (c == '~' && (next == '0' || next == '1')) {
        part += next == '0' ? '~' : '/';
        ++i;
      } else if (c == '%' && i + 2 < end &&
                 std::from_chars(&reference[i + 1], &reference[i + 3], code, 16).ptr ==
                     &reference[i + 3]) {
        part += static_cast<char>(code);
        i += 2;
      } else {
        part += c;
      }
    }
    const Json* next = nullptr;
    if (at->is_object()) {
      if (const auto found = at->find(part); found != at->end()) next = &*found;
    } else if (at->is_array()) {
      size_t index = 0;
      const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
      if (read.ptr == part.data() + part.size() && !part.empty() && index < at->size())
        next = &(*at)[index];
    }
    if (next == nullptr)
      fail(ErrorKind::input, where_,
           "{}: $ref \"{}\" leads nowhere; expected a place of the schema", path,
           reference.substr(0, 100));
    at = next;
    begin = end + 1;
  }
  return *at;
}

std::optional<std::string> SchemaMerger::plain_reference(const Json& schema,
                                                         const std::string& path) const {
  if (!schema.is_object()) return std::nullopt;
  const auto found = schema.find("$ref");
  if (found == schema.end()) return std::nullopt;
  if (!found->is_string())
    fail(ErrorKind::input, where_, "{}/$ref: found {}; expected a string", path,
         spec::kind_of(*found));
  for (const auto& [key, member] : schema.items())
    if (key != "$ref" && is_schema_word(key)) return std::nullopt;
  return found->get<std::string>();
}

/// Converts keywords of older drafts to 2020-12.
Json SchemaMerger::dressed(Json s, const std::string& path) const {
  if (s.is_boolean()) return s;
  if (!s.is_object())
    fail(ErrorKind::input, where_, "{}: found {}; expected a schema: an object, true or false",
         path, spec::kind_of(s));
  Json words = Json::object();
  for (const auto& [key, member] : s.items())
    if (is_schema_word(key)) words[key] = member;
  s = std::move(words);
  if (const auto found = s.find("const"); found != s.end()) {
    const Json value = *found;
    s.erase("const");
    Json values = Json::array({value});
    if (s.contains("enum") && s["enum"].is_array() &&
        std::find(s["enum"].begin(), s["enum"].end(), value) == s["enum"].end())
      values = Json::array();
    s["enum"] = values;
  }
  if (const auto found = s.find("items"); found != s.end() && found->is_array()) {
    const Json items = *found;
    s["prefixItems"] = items;
    s.erase("items");
    if (s.contains("additionalItems")) s["items"] = Json(s["additionalItems"]);
  }
  s.erase("additionalItems");
  for (const auto& [exclusive, bound] :
       {std::pair{"exclusiveMinimum", "minimum"}, std::pair{"exclusiveMaximum", "maximum"}})
    if (const auto found = s.find(exclusive); found != s.end() && found->is_boolean()) {
      const bool out = found->get<bool>() && s.contains(bound);
      s.erase(exclusive);
      if (!out) continue;
      const Json value = s[bound];
      s[exclusive] = value;
      s.erase(bound);
    }
  if (const auto found = s.find("type"); found != s.end()) {
    static const std::array kTypes = {"object",  "array",   "string", "number",
                                      "integer", "boolean", "null"};
    const auto check = [&](const Json& type) {
      if (!type.is_string() ||
          std::none_of(kTypes.begin(), kTypes.end(), [&](const char* t) { return type == t; }))
        fail(ErrorKind::input, where_,
             "{}/type: found {}; expected object, array, string, number, "
             "integer, boolean or null",
             path, type.dump().substr(0, 60));
    };
    if (found->is_array())
      for (const Json& type : *found) check(type);
    else
      check(*found);
  }
  return s;
}

std::vector<Alternative> SchemaMerger::alternatives(const Json& schema,
                                                    const std::string& path,
                                                    bool strict) {
  return expanded(schema, path, strict, 0);
}

SchemaMerger::List SchemaMerger::expanded(const Json& schema,
                                          const std::string& path,
                                          bool strict,
                                          int depth) {
  if (depth > kMostSchemaDepth)
    fail(ErrorKind::input, where_,
         "unsupported schema: {}: references or combinations that come back to themselves", path);
  Json base = dressed(schema, path);
  if (base.is_boolean()) return {{base, path}};
  const auto part = [&](const char* key) {
    const auto found = base.find(key);
    Json value = found == base.end() ? Json() : *found;
    base.erase(key);
    return value;
  };
  const auto reference = plain_reference(schema, path);
  if (reference) return {{Json{{"$ref", *reference}}, path}};
  const Json ref = part("$ref"), all = part("allOf"), any = part("anyOf"), one = part("oneOf");
  List out = {{base, path}};
  if (ref.is_string())
    out =
        crossed(out, expanded(resolve(ref, path), path + "/$ref", strict, depth + 1), path, depth);
  const auto list = [&](const Json& parts, const char* key) {
    if (!parts.is_array() || parts.empty())
      fail(ErrorKind::input, where_, "{}/{}: found {}; expected an array of schemas", path, key,
           parts.is_array() ? "an empty array" : spec::kind_of(parts));
    std::vector<List> lists;
    for (size_t i = 0; i < parts.size(); ++i)
      lists.push_back(expanded(parts[i], fmt::format("{}/{}/{}", path, key, i), strict, depth + 1));
    return lists;
  };
  if (!all.is_null())
    for (const List& each : list(all, "allOf")) out = crossed(out, each, path, depth);
  for (const auto& [parts, key] : {std::pair{&any, "anyOf"}, std::pair{&one, "oneOf"}}) {
    if (parts->is_null()) continue;
    const std::vector<List> lists = list(*parts, key);
    List branches;
    std::vector<size_t> from;
    for (size_t i = 0; i < lists.size(); ++i) {
      // keywords next to the branches may make them disjoint
      for (const Alternative& a : crossed(out, lists[i], path, depth)) {
        branches.push_back(a);
        from.push_back(i);
      }
    }
    if (parts == &one)
      for (size_t i = 0; i < branches.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          if (from[i] != from[j] && !apart(branches[i].schema, branches[j].schema, depth)) {
            const std::string place = fmt::format(
                "{}/oneOf: branches {} and {} may both accept a value", path, from[j], from[i]);
            if (strict)
              fail(ErrorKind::input, where_,
                   "unsupported schema: {}; expected anyOf, or branches told apart by a type or a "
                   "const",
                   place);
            ignored_.push_back(place);
            i = branches.size();
            break;
          }
    out = std::move(branches);
  }
  return out;
}

SchemaMerger::List SchemaMerger::crossed(const List& a,
                                         const List& b,
                                         const std::string& path,
                                         int depth) {
  if (a.size() * b.size() > kMostSchemaAlternatives)
    fail(ErrorKind::input, where_, "unsupported schema: {}: more than {} combinations", path,
         kMostSchemaAlternatives);
  List out;
  const auto opened = [&](const Alternative& one) {
    // a reference with other keywords is expanded
    if (const auto reference = plain_reference(one.schema, one.path))
      return expanded(resolve(*reference, one.path), one.path, true, depth + 1);
    return List{one};
  };
  const auto trivial = [](const Json& s) { return s == true || (s.is_object() && s.empty()); };
  for (const Alternative& x : a)
    for (const Alternative& y : b) {
      if (trivial(x.schema)) {
        out.push_back(y);
        continue;
      }
      if (trivial(y.schema)) {
        out.push_back(x);
        continue;
      }
      for (const Alternative& p : opened(x))
        for (const Alternative& q : opened(y)) {
          if (plain_reference(p.schema, path) || plain_reference(q.schema, path)) {
            const List inner = crossed({p}, {q}, path, depth + 1);
            if (depth > kMostSchemaDepth)
              fail(ErrorKind::input, where_, "unsupported schema: {}: references in a circle",
                   path);
            out.insert(out.end(), inner.begin(), inner.end());
            continue;
          }
          out.push_back({merged(p.schema, q.schema, path, depth), q.path});
        }
    }
  return out;
}

/// The intersection of two schemas.
Json SchemaMerger::merged(const Json& a, const Json& b, const std::string& path, int depth) {
  if (depth > kMostSchemaDepth)
    fail(ErrorKind::input, where_, "unsupported schema: {}: nested too deep", path);
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  Json out = a;
  const auto both = [&](const Json& x, const Json& y) {
    return x == y || x == true ? y : y == true ? x : Json{{"allOf", Json::array({x, y})}};
  };
  // objects: a property that one schema does not name is an additional one there
  if (a.contains("properties") || b.contains("properties") || a.contains("additionalProperties") ||
      b.contains("additionalProperties")) {
    const auto named = [](const Json& s) { return s.value("properties", Json::object()); };
    const auto further = [](const Json& s) { return s.value("additionalProperties", Json(true)); };
    Json all = Json::object();
    const Json mine = named(a), others = named(b);
    for (const auto& [name, s] : mine.items())
      all[name] = both(s, others.contains(name) ? others[name] : further(b));
    for (const auto& [name, s] : others.items())
      if (!mine.contains(name)) all[name] = both(further(a), s);
    if (!all.empty()) out["properties"] = all;
    const Json rest = both(further(a), further(b));
    if (rest != true) out["additionalProperties"] = rest;
  }
  for (const auto& [key, value] : b.items()) {
    if (key == "properties" || key == "additionalProperties") continue;
    if (!a.contains(key)) {
      out[key] = value;
      continue;
    }
    const Json& own = a[key];
    if (own == value) continue;
    if (key == "type") {
      const auto x = schema_types(a), y = schema_types(b);
      Json types = Json::array();
      for (const std::string& t : x) {
        if (holds(y, t) || (t == "integer" && holds(y, "number")))
          types.push_back(t);
        else if (t == "number" && holds(y, "integer"))
          types.push_back("integer");
      }
      if (types.empty()) return false;
      out["type"] = types;
    } else if (key == "enum") {
      Json values = Json::array();
      for (const Json& v : own)
        if (std::find(value.begin(), value.end(), v) != value.end()) values.push_back(v);
      out["enum"] = values;
    } else if (key == "required") {
      if (!own.is_array() || !value.is_array())
        fail(ErrorKind::input, where_, "{}/required: expected an array of names", path);
      for (const Json& name : value)
        if (std::find(own.begin(), own.end(), name) == own.end()) out["required"].push_back(name);
    } else if ((key.starts_with("min") || key == "exclusiveMinimum") && own.is_number() &&
               value.is_number()) {
      out[key] = own.get<double>() > value.get<double>() ? own : value;
    } else if ((key.starts_with("max") || key == "exclusiveMaximum") && own.is_number() &&
               value.is_number()) {
      out[key] = own.get<double>() < value.get<double>() ? own : value;
    } else if (key == "items" && !a.contains("prefixItems") && !b.contains("prefixItems")) {
      out[key] = both(own, value);
    } else if (key == "uniqueItems") {
      out[key] = own == true || value == true;
    } else {
      fail(ErrorKind::input, where_,
           "unsupported schema: {}: two values of \"{}\" that hold together", path, key);
    }
    // `items` of one applies to the first items of the other
    if (key == "items" && (a.contains("prefixItems") || b.contains("prefixItems")))
      fail(ErrorKind::input, where_, "unsupported schema: {}: items together with prefixItems",
           path);
  }
  if (a.contains("prefixItems") != b.contains("prefixItems") &&
      (a.contains("items") || b.contains("items")))
    fail(ErrorKind::input, where_, "unsupported schema: {}: items together with prefixItems", path);
  return out;
}

/// True if certainly no value is valid for both.
bool SchemaMerger::apart(const Json& a, const Json& b, int depth) const {
  if (depth > kMostSchemaDepth) return false;
  if (a == false || b == false) return true;
  if (a.is_boolean() || b.is_boolean()) return false;
  const auto opened = [&](const Json& s) -> Json {
    const auto reference = plain_reference(s, "#");
    return reference ? dressed(resolve(*reference, "#"), "#") : dressed(s, "#");
  };
  const Json x = opened(a), y = opened(b);
  if (x.is_boolean() || y.is_boolean()) return x == false || y == false;
  const auto allows = [&](const Json& s, const Json& value) {
    const std::string type = type_of(value);
    if (s.contains("type")) {
      const auto types = schema_types(s);
      if (!holds(types, type) && !(type == "integer" && holds(types, "number"))) return false;
    }
    return !s.contains("enum") ||
           std::find(s["enum"].begin(), s["enum"].end(), value) != s["enum"].end();
  };
  for (const auto& [one, other] : {std::pair{&x, &y}, std::pair{&y, &x}})
    if (one->contains("enum") && (*one)["enum"].is_array() &&
        std::none_of((*one)["enum"].begin(), (*one)["enum"].end(),
                     [&](const Json& v) { return allows(*other, v); }))
      return true;
  const auto types_x = schema_types(x), types_y = schema_types(y);
  const auto common = [&](std::string_view type) {
    const bool number = type == "number" || type == "integer";
    const auto in = [&](const std::vector<std::string>& types) {
      return holds(types, type) || (number && (holds(types, "number") || holds(types, "integer")));
    };
    return in(types_x) && in(types_y);
  };
  for (const char* type : {"string", "boolean", "null"})
    if (common(type)) return false;
  const auto bound = [](const Json& s, const char* key, double none) {
    const auto found = s.find(key);
    return found != s.end() && found->is_number() ? found->get<double>() : none;
  };
  if (common("number")) {
    const auto least = [&](const Json& s) {
      return std::max(bound(s, "minimum", -INFINITY), bound(s, "exclusiveMinimum", -INFINITY));
    };
    const auto most = [&](const Json& s) {
      return std::min(bound(s, "maximum", INFINITY), bound(s, "exclusiveMaximum", INFINITY));
    };
    if (!(most(x) < least(y) || most(y) < least(x))) return false;
  }
  if (common("array")) {
    if (!(bound(x, "maxItems", INFINITY) < bound(y, "minItems", 0) ||
          bound(y, "maxItems", INFINITY) < bound(x, "minItems", 0)))
      return false;
  }
  if (!common("object")) return true;
  const auto needs = [](const Json& s, const std::string& name) {
    const Json required = s.value("required", Json::array());
    return std::find(required.begin(), required.end(), Json(name)) != required.end();
  };
  const auto member = [](const Json& s, const std::string& name) -> Json {
    const Json properties = s.value("properties", Json::object());
    return properties.contains(name) ? properties[name]
                                     : s.value("additionalProperties", Json(true));
  };
  for (const auto& [one, other] : {std::pair{&x, &y}, std::pair{&y, &x}})
    for (const Json& name : one->value("required", Json::array())) {
      if (!name.is_string()) continue;
      const Json theirs = member(*other, name);
      if (theirs == false) return true;
      if (needs(*other, name) && apart(member(*one, name), theirs, depth + 1)) return true;
    }
  return false;
}

}  // namespace tessera::text
