// Filters that make lists of lists, and those that format numbers and texts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/text/jinja/jinja_value.h"

namespace tessera::text::jinja {

/// batch, slice, groupby; nothing for another name.
std::optional<Value> list_filter(const std::string& name,
                                 const Value& of,
                                 const Arguments& arguments,
                                 Budget& budget);
/// round, escape, e, forceescape, safe, urlencode, center, format; nothing for another name.
std::optional<Value> format_filter(const std::string& name,
                                   const Value& of,
                                   const Arguments& arguments,
                                   Budget& budget);
/// `format % values` of Python: a tuple is the arguments, a mapping serves %(name)s.
Text percent_formatted(const Text& format, const Value& values, Budget& budget);

/// "a.b.0" below a value.
Value path_of(Value value, const Value& path, Budget& budget);
/// What sorting compares: texts without their case unless `cases`.
Value sort_key(const Value& value, bool cases, Budget& budget);
/// In the order of an attribute, or of the items; equal ones keep their order.
std::vector<Value> sorted(
    std::vector<Value> items, const Value* attribute, bool cases, bool reverse, Budget& budget);

}  // namespace tessera::text::jinja
