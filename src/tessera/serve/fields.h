// Fields of request bodies: one list per route defines parsing, checks and the schema in
// /openapi.json. An unknown field is an error that names the nearest known one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/serve/api_error.h"

namespace tessera::serve {

/// Readers of single values; `name` is for messages. They throw 400 for values out of range or of
/// another type, and never clamp.
double number_of(const Json& value, const std::string& name, double least, double most);
int64_t integer_of(const Json& value, const std::string& name, int64_t least, int64_t most);
bool flag_of(const Json& value, const std::string& name);
std::string text_of(const Json& value, const std::string& name, size_t most_bytes);
/// A list of ids, each at least 0.
std::vector<int64_t> ids_of(const Json& value, const std::string& name, size_t most);

/// Handling of unknown members of a request: a 400 with the nearest known name, or, in a lenient
/// server, a list of their paths.
class UnknownMembers {
 public:
  /// nullptr: unknown members are refused.
  explicit UnknownMembers(std::vector<std::string>* ignored = nullptr) : ignored_(ignored) {}
  /// `path`: of the object with the member, "" = the body.
  void meet(const std::string& path,
            const std::string& name,
            const std::vector<std::string>& known) const;

 private:
  std::vector<std::string>* ignored_;
};

/// Calls `read(name, value, path of the member)` for each known member of an object that is not
/// null. Null counts as absent, whatever the name.
template <class Read>
void read_members(const Json& object,
                  const std::string& path,
                  const std::vector<std::string>& known,
                  const UnknownMembers& unknown,
                  const Read& read) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (std::find(known.begin(), known.end(), name) == known.end())
      unknown.meet(path, name, known);
    else
      read(name, value, path.empty() ? name : path + "." + name);
  }
}

template <class Body>
struct Field {
  using Read = std::function<void(
      Body& body, const Json& value, const std::string& name, const UnknownMembers& unknown)>;
  std::string name;
  std::vector<std::string> aliases;
  Json schema;
  std::string doc;
  Read read;
  bool required = false;
};

template <class Body>
class Fields {
 public:
  using Read = typename Field<Body>::Read;

  /// Adds a field with `read(body, value, name)`, or with a fourth argument for an object whose
  /// members are read by read_members().
  template <class Reader>
  Fields& add(std::string name, Json schema, std::string doc, Reader reader) {
    Read read;
    if constexpr (std::is_invocable_v<Reader&, Body&, const Json&, const std::string&,
                                      const UnknownMembers&>)
      read = std::move(reader);
    else
      read = [reader = std::move(reader)](Body& body, const Json& value, const std::string& path,
                                          const UnknownMembers&) { reader(body, value, path); };
    all_.push_back({std::move(name), {}, std::move(schema), std::move(doc), std::move(read)});
    return *this;
  }
  /// Another name of the last field; both with different values are an error.
  Fields& alias(std::string name) {
    all_.back().aliases.push_back(std::move(name));
    return *this;
  }

  /// The last field is required.
  Fields& required() {
    all_.back().required = true;
    return *this;
  }

  template <class C>
  Fields& number(std::string name,
                 std::optional<double> C::*member,
                 double least,
                 double most,
                 std::string doc) {
    return add(std::move(name), {{"type", "number"}, {"minimum", least}, {"maximum", most}},
               std::move(doc), [=](Body& body, const Json& value, const std::string& path) {
                 body.*member = number_of(value, path, least, most);
               });
  }
  template <class C, class T>
  Fields& integer(std::string name, T C::*member, int64_t least, int64_t most, std::string doc) {
    return add(std::move(name),
               with_default({{"type", "integer"}, {"minimum", least}, {"maximum", most}}, member),
               std::move(doc), [=](Body& body, const Json& value, const std::string& path) {
                 body.*member = integer_of(value, path, least, most);
               });
  }
  template <class C, class T>
  Fields& flag(std::string name, T C::*member, std::string doc) {
    return add(std::move(name), with_default({{"type", "boolean"}}, member), std::move(doc),
               [=](Body& body, const Json& value, const std::string& path) {
                 body.*member = flag_of(value, path);
               });
  }
  template <class C>
  Fields& text(std::string name, std::string C::*member, size_t most_bytes, std::string doc) {
    return add(std::move(name), {{"type", "string"}, {"maxLength", most_bytes}}, std::move(doc),
               [=](Body& body, const Json& value, const std::string& path) {
                 body.*member = text_of(value, path, most_bytes);
               });
  }
  /// A field that clients send without need: these values have no effect, others are refused.
  /// Without values only null is accepted.
  Fields& inert(std::string name, std::vector<Json> values, std::string doc) {
    Json schema = {{"x-no-effect", true}};  // no control for it
    for (const Json& value : values) schema["anyOf"].push_back(Json{{"const", value}});
    return add(std::move(name), std::move(schema), std::move(doc),
               [values](Body&, const Json& value, const std::string& path) {
                 if (std::find(values.begin(), values.end(), value) != values.end()) return;
                 refuse(path,
                        values.empty() ? path + " is not supported; leave it out"
                                       : fmt::format("{} is not supported; expected {}, or leave "
                                                     "it out",
                                                     path, Json(values).dump()),
                        "unsupported_parameter");
               });
  }

  /// A hint without effect: any value of this JSON type.
  Fields& hint(std::string name, const char* type, std::string doc) {
    return add(
        std::move(name), {{"anyOf", Json::array({Json{{"type", type}}})}, {"x-no-effect", true}},
        std::move(doc), [type](Body&, const Json& value, const std::string& path) {
          if (value.type_name() != std::string_view(type))
            refuse(path,
                   fmt::format("{} is {}; expected of type {}", path, spec::kind_of(value), type));
        });
  }

  /// Parses a body. Null counts as absent, also for an unknown field. With `ignored`, unknown
  /// fields and members are listed there instead of refused.
  Body read(const Json& json, std::vector<std::string>* ignored = nullptr) const {
    if (!json.is_object())
      refuse("", "the body is " + std::string(spec::kind_of(json)) + "; expected an object");
    Body body{};
    struct Given {
      const Field<Body>* field;
      std::string name;
      const Json* value;
    };
    std::vector<Given> given;
    const UnknownMembers unknown(ignored);
    read_members(json, "", names(), unknown,
                 [&](const std::string& name, const Json& value, const std::string&) {
                   const Field<Body>* const field = find(name);
                   for (const Given& before : given)
                     if (before.field == field && *before.value != value)
                       refuse(name, fmt::format("{} and {} are names of one parameter and have "
                                                "different values; leave one of them out",
                                                before.name, name));
                   given.push_back({field, name, &value});
                   field->read(body, value, name, unknown);
                 });
    for (const Field<Body>& field : all_)
      if (field.required && std::none_of(given.begin(), given.end(),
                                         [&](const Given& one) { return one.field == &field; }))
        refuse(field.name, field.name + " is missing", "missing_parameter");
    return body;
  }

  /// JSON schema for /openapi.json.
  Json schema() const {
    Json properties = Json::object();
    for (const Field<Body>& field : all_) {
      Json entry = field.schema;
      // null counts as absent
      if (!field.required && entry.contains("type") && entry["type"].is_string())
        entry["type"] = Json::array({entry["type"], "null"});
      entry["description"] = field.doc;
      properties[field.name] = entry;
      for (const std::string& alias : field.aliases)
        properties[alias] = {{"description", "another name of " + field.name}};
    }
    Json out = {{"type", "object"},
                {"properties", properties},
                {"additionalProperties", Json{{"type", "null"}}}};
    for (const Field<Body>& field : all_)
      if (field.required) out["required"].push_back(field.name);
    return out;
  }

 private:
  /// Adds the default, unless it depends on model or server.
  template <class C, class T>
  static Json with_default(Json schema, T C::*member) {
    if constexpr (std::is_arithmetic_v<T>) {
      const Json value = C{}.*member;
      if (!schema.contains("minimum") || value >= schema["minimum"]) schema["default"] = value;
    }
    return schema;
  }
  const Field<Body>* find(const std::string& name) const {
    for (const Field<Body>& field : all_)
      if (field.name == name ||
          std::find(field.aliases.begin(), field.aliases.end(), name) != field.aliases.end())
        return &field;
    return nullptr;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const Field<Body>& field : all_) {
      out.push_back(field.name);
      out.insert(out.end(), field.aliases.begin(), field.aliases.end());
    }
    return out;
  }

  std::vector<Field<Body>> all_;
};

}  // namespace tessera::serve
