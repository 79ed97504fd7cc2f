// Filters, tests and methods of chat templates, as in Jinja and Python.
#pragma once

#include <optional>

#include "tessera/text/jinja/jinja_value.h"

namespace tessera::text::jinja {

/// Stops the rendering if the filter does not exist or does not accept the arguments.
Value apply_filter(const std::string& name,
                   const Value& of,
                   const Arguments& arguments,
                   Budget& budget);
bool apply_test(const std::string& name,
                const Value& of,
                const Arguments& arguments,
                Budget& budget);
/// nullopt if the type has no such method.
std::optional<Value> method_of(const Value& of, const std::string& name, Budget& budget);
/// `of.name` and `of[key]`: methods before keys, or the other way round.
Value attribute_of(const Value& of, const std::string& name, Budget& budget);
Value item_of(const Value& of, const Value& key, Budget& budget);

}  // namespace tessera::text::jinja
