// Flags of decoding options, with the names, the doc line and the range of their list
// (infer/sampling/decoding_fields.h); `more` follows the doc line.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/cli/cli.h"
#include "tessera/infer/sampling/decoding_fields.h"

namespace tessera::cli {

/// The valid range of a number; -1 below 0 means no limit.
inline CLI::Validator within(const infer::DecodingField& option) {
  if (option.most < infer::DecodingField::kAny)
    return CLI::Range(static_cast<int64_t>(option.least), static_cast<int64_t>(option.most));
  return option.least == 0 ? not_negative() : option.least == -1 ? count_or_all() : finite();
}

template <class T>
CLI::Option* add_flag_of(CLI::App& app,
                         const infer::DecodingField& option,
                         T& value,
                         std::string_view more = {}) {
  // an empty text would be as if the flag were not given
  constexpr auto not_empty = [](const std::string& text) -> std::string {
    return text.empty() ? "empty; expected a text" : "";
  };
  if constexpr (std::is_same_v<T, bool>)
    return app.add_flag(option.flag_names(), value, option.with(more));
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return add_texts(app, option.flag_names(), value, option.with(more))->check(not_empty);
  else if constexpr (std::is_same_v<T, std::string>)
    return app.add_option(option.flag_names(), value, option.with(more))->check(not_empty);
  else
    return app.add_option(option.flag_names(), value, option.with(more));
}

/// A number in its valid range; the help shows its default.
template <class T>
CLI::Option* add_number(CLI::App& app,
                        const infer::DecodingField& option,
                        T& value,
                        std::string_view more = {}) {
  return add_flag_of(app, option, value, more)->capture_default_str()->check(within(option));
}

}  // namespace tessera::cli
