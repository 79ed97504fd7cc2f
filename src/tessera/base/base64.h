// Base64 (RFC 4648, section 4), in full groups of four.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

std::string base64(std::string_view bytes);
/// nullopt for text that base64() does not produce.
std::optional<std::string> bytes_of_base64(std::string_view text);

}  // namespace tessera
