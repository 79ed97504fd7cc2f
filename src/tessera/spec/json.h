// JSON as tessera reads it everywhere: specs, recipes, foreign configs, tokenizers, file headers.
// A front over nlohmann::json that treats the text as hostile: size, depth and element limits,
// duplicate keys refused, UTF-8 checked, numbers finite. `//` and `/* */` comments where allowed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tessera::spec {

/// Keeps the order of keys, so that what is written reads like what was given.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 64;
  size_t max_values = 20'000'000;
  bool comments = false;
};

/// Throws Error(file) "[where] byte N: found ...; expected ..." on anything malformed.
Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// What kind of value this is, in words for messages: "a string", "an object", ...
std::string_view kind_of(const Json& value);

/// The candidate nearest to `name` by edit distance, or "" when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::spec
