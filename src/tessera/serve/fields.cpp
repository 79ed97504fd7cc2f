#include "tessera/serve/fields.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

/// The type of a value, without its content.
std::string found(const Json& value) {
  if (value.is_number()) return value.dump();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  return std::string(spec::kind_of(value));
}

[[noreturn]] void refuse_value(const Json& value,
                               const std::string& name,
                               const std::string& expected) {
  refuse(name, fmt::format("{} is {}; expected {}", name, found(value), expected));
}

}  // namespace

double number_of(const Json& value, const std::string& name, double least, double most) {
  const std::string expected = fmt::format("a number from {} to {}", least, most);
  if (!value.is_number()) refuse_value(value, name, expected);
  const auto number = value.get<double>();
  if (!(number >= least && number <= most)) refuse_value(value, name, expected);
  return number;
}

int64_t integer_of(const Json& value, const std::string& name, int64_t least, int64_t most) {
  const std::string expected = fmt::format("a whole number from {} to {}", least, most);
  if (value.is_number_float()) {
    // 16.0 is as whole as 16
    const auto number = value.get<double>();
    if (number != std::floor(number) || std::abs(number) > 0x1p53)
      refuse_value(value, name, expected);
    return integer_of(Json(static_cast<int64_t>(number)), name, least, most);
  }
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())))
    refuse_value(value, name, expected);
  const auto number = value.get<int64_t>();
  if (number < least || number > most) refuse_value(value, name, expected);
  return number;
}

bool flag_of(const Json& value, const std::string& name) {
  if (!value.is_boolean()) refuse_value(value, name, "true or false");
  return value.get<bool>();
}

std::string text_of(const Json& value, const std::string& name, size_t most_bytes) {
  if (!value.is_string()) refuse_value(value, name, "a string");
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > most_bytes)
    refuse(name,
           fmt::format("{} has {} bytes; expected at most {}", name, text.size(), most_bytes));
  return text;
}

std::vector<int64_t> ids_of(const Json& value, const std::string& name, size_t most) {
  if (!value.is_array()) refuse_value(value, name, "a list of token ids");
  if (value.size() > most)
    refuse(name, fmt::format("{} has {} ids; expected at most {}", name, value.size(), most));
  std::vector<int64_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value)
    ids.push_back(integer_of(id, name, 0, std::numeric_limits<int32_t>::max()));
  return ids;
}

void UnknownMembers::meet(const std::string& path,
                          const std::string& name,
                          const std::vector<std::string>& known) const {
  // the name is untrusted input
  const std::string where = (path.empty() ? "" : path + ".") + name.substr(0, 60);
  const std::string shown = Json(where).dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr size_t kMostNames = 64;
  if (ignored_ != nullptr) {
    if (ignored_->size() < kMostNames) ignored_->push_back(where);
    return;
  }
  const std::string nearest = spec::nearest_name(name, known);
  const std::string otherwise =
      path.empty() ? "/openapi.json lists them" : "--lenient lets it pass";
  throw ApiError(
      400, "unknown_parameter",
      fmt::format("there is no parameter {}; {}", shown,
                  nearest.empty() ? otherwise : fmt::format("did you mean \"{}\"?", nearest)),
      where);
}

}  // namespace tessera::serve
