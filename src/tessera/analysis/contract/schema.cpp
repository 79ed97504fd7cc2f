#include "tessera/analysis/contract/schema.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace tessera::contract {
namespace {

using spec::Json;

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "null" && value.is_null();
}

bool has_type(const Json& value, const Json& types) {
  if (types.is_string()) return has_type(value, types.get<std::string>());
  return std::any_of(types.begin(), types.end(),
                     [&](const Json& type) { return has_type(value, type.get<std::string>()); });
}

}  // namespace

std::string first_type(const Json& property) {
  const Json type = property.value("type", Json(""));
  return (type.is_array() ? type[0] : type).get<std::string>();
}

std::string violation(const Json& value,
                      const Json& schema,
                      const Json& root,
                      const std::string& path) {
  static const std::set<std::string> kKnown = {"type",
                                               "properties",
                                               "required",
                                               "additionalProperties",
                                               "enum",
                                               "const",
                                               "anyOf",
                                               "items",
                                               "minimum",
                                               "maximum",
                                               "$ref",
                                               "$schema",
                                               "$defs",
                                               "title",
                                               "description",
                                               "exclusiveMinimum",
                                               "exclusiveMaximum"};
  for (const auto& [key, unused] : schema.items())
    if (!kKnown.count(key)) return fmt::format("{}: the schema uses \"{}\"", path, key);
  if (schema.contains("$ref")) {
    const auto name = schema["$ref"].get<std::string>();
    const Json* target = &root;
    if (name.rfind("#/$defs/", 0) != 0 || !root["$defs"].contains(name.substr(8)))
      return fmt::format("{}: nothing at {}", path, name);
    target = &root["$defs"][name.substr(8)];
    return violation(value, *target, root, path);
  }
  if (schema.contains("anyOf")) {
    std::string all;
    bool fits = false;
    for (const Json& choice : schema["anyOf"]) {
      const std::string problem = violation(value, choice, root, path);
      fits = fits || problem.empty();
      all += "\n    " + problem;
    }
    if (!fits) return fmt::format("{}: none of the choices fits:{}", path, all);
  }
  if (schema.contains("const") && value != schema["const"])
    return fmt::format("{}: {} is not {}", path, value.dump(), schema["const"].dump());
  if (schema.contains("enum")) {
    bool found = false;
    for (const Json& choice : schema["enum"]) found = found || choice == value;
    if (!found)
      return fmt::format("{}: {} is not one of {}", path, value.dump(), schema["enum"].dump());
  }
  if (schema.contains("type") && !has_type(value, schema["type"]))
    return fmt::format("{}: {} is not of type {}", path, value.dump(), schema["type"].dump());
  if (value.is_number())
    for (const auto& [bound, holds] :
         {std::pair<const char*, bool (*)(double, double)>{
              "minimum", [](double x, double of) { return x >= of; }},
          {"exclusiveMinimum", [](double x, double of) { return x > of; }},
          {"maximum", [](double x, double of) { return x <= of; }},
          {"exclusiveMaximum", [](double x, double of) { return x < of; }}})
      if (schema.contains(bound) && !holds(value.get<double>(), schema[bound].get<double>()))
        return fmt::format("{}: {}, and {} is {}", path, value.dump(), bound, schema[bound].dump());
  if (value.is_array() && schema.contains("items"))
    for (size_t i = 0; i < value.size(); ++i)
      if (const std::string problem =
              violation(value[i], schema["items"], root, fmt::format("{}[{}]", path, i));
          !problem.empty())
        return problem;
  if (!value.is_object()) return "";
  if (schema.contains("required"))
    for (const Json& name : schema["required"])
      if (!value.contains(name.get<std::string>()))
        return fmt::format("{}: {} is missing", path, name.dump());
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [key, item] : value.items()) {
    if (properties.contains(key)) {
      if (const std::string problem = violation(item, properties[key], root, path + "." + key);
          !problem.empty())
        return problem;
    } else if (schema.contains("additionalProperties") && schema["additionalProperties"] == false) {
      return fmt::format("{}: \"{}\" is not in the schema", path, key);
    }
  }
  return "";
}

}  // namespace tessera::contract
