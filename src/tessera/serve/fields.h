// The fields of a request's body: one list for each route, from which it is read and checked, and
// which /openapi.json shows. A field that is not in the list is an error that names the nearest
// one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/serve/api_error.h"

namespace tessera::serve {

/// Readers of single values; `name` is for messages. They refuse what is out of range or of another
/// type, and never clamp.
double number_of(const Json& value, const std::string& name, double least, double most);
int64_t integer_of(const Json& value, const std::string& name, int64_t least, int64_t most);
bool flag_of(const Json& value, const std::string& name);
std::string text_of(const Json& value, const std::string& name, size_t most_bytes);
/// A list of ids, each 0 or more.
std::vector<int64_t> ids_of(const Json& value, const std::string& name, size_t most);

/// 400 for a field that no list has: "did you mean", or that it is known elsewhere and not here.
[[noreturn]] void refuse_unknown(const std::string& name, const std::vector<std::string>& known);

template <class Body>
struct Field {
  using Read = std::function<void(Body& body, const Json& value, const std::string& name)>;
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

  Fields& add(std::string name, Json schema, std::string doc, Read read) {
    all_.push_back({std::move(name), {}, std::move(schema), std::move(doc), std::move(read)});
    return *this;
  }
  /// Another name of the last one; both with different values are an error.
  Fields& alias(std::string name) {
    all_.back().aliases.push_back(std::move(name));
    return *this;
  }

  /// The last one must be there.
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
               std::move(doc), [=](Body& body, const Json& value, const std::string& said) {
                 body.*member = number_of(value, said, least, most);
               });
  }
  template <class C, class T>
  Fields& integer(std::string name, T C::*member, int64_t least, int64_t most, std::string doc) {
    return add(std::move(name), {{"type", "integer"}, {"minimum", least}, {"maximum", most}},
               std::move(doc), [=](Body& body, const Json& value, const std::string& said) {
                 body.*member = integer_of(value, said, least, most);
               });
  }
  template <class C, class T>
  Fields& flag(std::string name, T C::*member, std::string doc) {
    return add(std::move(name), {{"type", "boolean"}}, std::move(doc),
               [=](Body& body, const Json& value, const std::string& said) {
                 body.*member = flag_of(value, said);
               });
  }
  template <class C>
  Fields& text(std::string name, std::string C::*member, size_t most_bytes, std::string doc) {
    return add(std::move(name), {{"type", "string"}, {"maxLength", most_bytes}}, std::move(doc),
               [=](Body& body, const Json& value, const std::string& said) {
                 body.*member = text_of(value, said, most_bytes);
               });
  }
  /// What clients send without need: these values change nothing, others are refused.
  Fields& inert(std::string name, std::vector<Json> values, std::string doc) {
    Json schema = values.empty() ? Json::object() : Json{{"enum", values}};
    return add(
        std::move(name), std::move(schema), std::move(doc),
        [values](Body&, const Json& value, const std::string& said) {
          if (values.empty() || std::find(values.begin(), values.end(), value) != values.end())
            return;
          refuse(said, said + " is not supported here but for " + Json(values).dump(),
                 "unsupported_parameter");
        });
  }

  /// What clients send without need, of any value of this JSON type.
  Fields& inert(std::string name, const char* type, std::string doc) {
    return add(std::move(name), {{"type", type}}, std::move(doc),
               [type](Body&, const Json& value, const std::string& said) {
                 if (value.type_name() != std::string_view(type))
                   refuse(said, fmt::format("{} is {}; expected of type {}", said,
                                            spec::kind_of(value), type));
               });
  }

  /// Null is as good as absent. With `ignored`, unknown fields are listed there instead of refused.
  Body read(const Json& json, std::vector<std::string>* ignored = nullptr) const {
    if (!json.is_object())
      refuse("", "the body is " + std::string(spec::kind_of(json)) + "; expected an object");
    Body body{};
    std::vector<std::pair<const Field<Body>*, const Json*>> given;
    for (const auto& [name, value] : json.items()) {
      const Field<Body>* const field = find(name);
      if (field == nullptr) {
        if (ignored == nullptr) refuse_unknown(name, names());
        ignored->push_back(name);
        continue;
      }
      if (value.is_null()) continue;
      for (const auto& [other, before] : given)
        if (other == field && *before != value)
          refuse(name, name + " is another name of " + field->name +
                           ", which is given too, with another value");
      given.emplace_back(field, &value);
      field->read(body, value, name);
    }
    for (const Field<Body>& field : all_)
      if (field.required && std::none_of(given.begin(), given.end(),
                                         [&](const auto& one) { return one.first == &field; }))
        refuse(field.name, field.name + " is missing", "missing_parameter");
    return body;
  }

  /// As /openapi.json has it.
  Json schema() const {
    Json properties = Json::object();
    for (const Field<Body>& field : all_) {
      Json entry = field.schema;
      // null is as good as nothing
      if (!field.required && entry.contains("type") && entry["type"].is_string())
        entry["type"] = Json::array({entry["type"], "null"});
      entry["description"] = field.doc;
      properties[field.name] = entry;
      for (const std::string& alias : field.aliases)
        properties[alias] = {{"description", "another name of " + field.name}};
    }
    Json out = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    for (const Field<Body>& field : all_)
      if (field.required) out["required"].push_back(field.name);
    return out;
  }

 private:
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
