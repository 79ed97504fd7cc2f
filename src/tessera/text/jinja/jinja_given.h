// The arguments of a filter, a test or a method.
#pragma once

#include <string>

#include <fmt/format.h>

#include "tessera/text/jinja/jinja_value.h"

namespace tessera::text::jinja {

/// The arguments of one call by position or name; all must be used.
class Given {
 public:
  Given(const char* what, const std::string& name, const Arguments& arguments)
      : what_(what), name_(name), arguments_(arguments) {}
  const Value* take(const char* name) {
    if (at_ < arguments_.values.size()) return &arguments_.values[at_++];
    for (const auto& [known, value] : arguments_.named)
      if (known == name) {
        ++named_;
        return &value;
      }
    return nullptr;
  }
  const Value& need(const char* name) {
    const Value* value = take(name);
    if (value == nullptr) stop(fmt::format("{} {}: expected {}", what_, name_, name));
    return *value;
  }
  const Text& text(const char* name) { return text_in(need(name), name); }
  const Text* text_or_null(const char* name) {
    const Value* value = take(name);
    return value == nullptr || value->none() ? nullptr : &text_in(*value, name);
  }
  int64_t integer(const char* name, int64_t otherwise) {
    const Value* value = take(name);
    if (value == nullptr || value->none()) return otherwise;
    if (!value->whole())
      stop(fmt::format("{} {}: {} is {}; expected a whole number", what_, name_, name,
                       type_name(*value)));
    return value->integer();
  }
  bool flag(const char* name, bool otherwise) {
    const Value* value = take(name);
    return value == nullptr ? otherwise : truth(*value);
  }
  void end() const {
    if (at_ < arguments_.values.size() || named_ < arguments_.named.size())
      stop(fmt::format("{} {}: an argument that it does not take", what_, name_));
  }

 private:
  const Text& text_in(const Value& value, const char* name) const {
    if (value.text() == nullptr)
      stop(fmt::format("{} {}: {} is {}; expected a text", what_, name_, name, type_name(value)));
    return *value.text();
  }
  const char* what_;
  const std::string& name_;
  const Arguments& arguments_;
  size_t at_ = 0, named_ = 0;
};

}  // namespace tessera::text::jinja
