// Filters for lists of lists, and for formatting numbers and texts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/text/jinja/jinja_value.h"

namespace tessera::text::jinja {

/// batch, slice, groupby; nullopt for other names.
std::optional<Value> list_filter(const std::string& name,
                                 const Value& of,
                                 const Arguments& arguments,
                                 Budget& budget);
/// round, escape, e, forceescape, safe, urlencode, center, format; nullopt for other names.
std::optional<Value> format_filter(const std::string& name,
                                   const Value& of,
                                   const Arguments& arguments,
                                   Budget& budget);
/// Python's `format % values`: a tuple is the arguments, a mapping is for %(name)s.
Text percent_formatted(const Text& format, const Value& values, Budget& budget);

/// The value at path "a.b.0".
Value path_of(Value value, const Value& path, Budget& budget);
/// The sort key: texts without case unless `cases`.
Value sort_key(const Value& value, bool cases, Budget& budget);
/// Stable sort by an attribute, or by the items.
std::vector<Value> sorted(
    std::vector<Value> items, const Value* attribute, bool cases, bool reverse, Budget& budget);

}  // namespace tessera::text::jinja
