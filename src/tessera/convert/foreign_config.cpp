#include "tessera/convert/foreign_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

using spec::Json;

constexpr uint64_t kMaxArray = 65'536;
constexpr int64_t kMaxDots = 8;
constexpr size_t kMaxMembers = 30'000;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Bare Infinity, -Infinity and NaN, which Python writes but JSON lacks, as the object that newer
/// files have.
std::string with_named_floats(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size())
        out += text[++i];
      else if (c == '"')
        in_string = false;
      continue;
    }
    in_string = c == '"';
    bool replaced = false;
    for (const std::string_view name : {"-Infinity", "Infinity", "NaN"}) {
      if (text.substr(i, name.size()) != name || (i > 0 && is_word(text[i - 1]))) continue;
      if (i + name.size() < text.size() && is_word(text[i + name.size()])) continue;
      out += fmt::format("{{\"__float__\": \"{}\"}}", name);
      i += name.size() - 1;
      replaced = true;
      break;
    }
    if (!replaced) out += c;
  }
  return out;
}

void resolve_named_floats(Json& json, std::string_view where) {
  if (json.is_object() && json.size() == 1 && json.begin().key() == "__float__") {
    const Json name = json.begin().value();
    const double infinity = std::numeric_limits<double>::infinity();
    if (name == "Infinity")
      json = infinity;
    else if (name == "-Infinity")
      json = -infinity;
    else
      fail(ErrorKind::file, where,
           "a number is {}; expected Infinity, -Infinity or a finite number", name.dump());
    return;
  }
  if (json.is_structured())
    for (Json& child : json) resolve_named_floats(child, where);
}

void name_floats(Json& json) {
  if (json.is_number_float() && std::isinf(json.get<double>()))
    json = {{"__float__", json.get<double>() > 0 ? "Infinity" : "-Infinity"}};
  else if (json.is_structured())
    for (Json& child : json) name_floats(child);
}

/// UTF-8 text only: JSON cannot hold other bytes.
std::string checked_text(std::string_view text, std::string_view key, std::string_view where) {
  std::string printable = format::printable(text, text.size());
  if (printable != text)
    fail(ErrorKind::file, where, "metadata key {} is {}; expected readable text",
         format::in_quotes(key), format::in_quotes(text));
  return printable;
}

Json value_json(const format::GgufValue& value, std::string_view key, std::string_view where) {
  using format::GgufType;
  if ((value.type() == GgufType::f32 || value.type() == GgufType::f64) &&
      std::isnan(value.as_f64()))
    fail(ErrorKind::file, where, "metadata key {} is NaN; expected a number",
         format::in_quotes(key));
  switch (value.type()) {
    case GgufType::string:
      return checked_text(value.as_string(), key, where);
    case GgufType::boolean:
      return value.as_bool();
    case GgufType::f64:
      return value.as_f64();
    case GgufType::f32: {
      // 1e-5 as float32 is 9.99999975e-06: the shortest text that names the float names the number
      // meant
      const auto number = static_cast<float>(value.as_f64());
      char text[32];
      const auto [end, error] = std::to_chars(text, text + sizeof text, number);
      double parsed = number;
      if (error == std::errc()) std::from_chars(text, end, parsed);
      return parsed;
    }
    case GgufType::array: {
      if (value.size() > kMaxArray)
        fail(ErrorKind::file, where, "{} has {} elements; expected at most {}",
             format::in_quotes(key), value.size(), kMaxArray);
      Json list = Json::array();
      for (const format::GgufValue& element : value.elements())
        list.push_back(value_json(element, key, where));
      return list;
    }
    case GgufType::u64:
      if (value.as_u64() > static_cast<uint64_t>(INT64_MAX))
        fail(ErrorKind::file, where, "metadata key {} is {}; expected an integer below 2^63",
             format::in_quotes(key), value.as_u64());
      return value.as_i64();
    default:
      return value.as_i64();
  }
}

}  // namespace

namespace {

/// A number for each layer, all alike, as the number.
void collapse_layers(Json& config, const Json& n_layers) {
  for (Json& value : config) {
    if (value.is_object()) collapse_layers(value, n_layers);
    if (!value.is_array() || value.empty() || n_layers != value.size()) continue;
    if (std::all_of(value.begin(), value.end(),
                    [&](const Json& one) { return one.is_number() && one == value.front(); }))
      value = Json(value.front());
  }
}

}  // namespace

void check_members(const Json& json, std::string_view where, ErrorKind kind) {
  if (json.is_object() && json.size() > kMaxMembers)
    fail(kind, where, "an object of {} members; expected at most {}", json.size(), kMaxMembers);
  if (json.is_structured())
    for (const Json& member : json) check_members(member, where, kind);
}

Json parse_hf_config(std::string_view text, std::string_view where) {
  Json config = spec::parse_json(with_named_floats(text), where);
  const auto check_object = [&] {
    if (!config.is_object())
      fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(config));
  };
  check_object();
  check_members(config, where, ErrorKind::file);
  resolve_named_floats(config, where);
  check_object();  // an infinite number alone is written as an object
  return config;
}

std::string hf_config_text(Json config, int indent) {
  name_floats(config);
  return config.dump(indent);
}

Json gguf_config(const format::GgufMetadata& metadata, std::string_view where) {
  constexpr const char* kArchitecture = "general.architecture";
  const std::string architecture =
      checked_text(metadata.get_string(kArchitecture), kArchitecture, where);
  Json config = Json::object();
  config["architecture"] = architecture;
  const std::string prefix = architecture + ".";
  size_t n_keys = 0;
  for (const format::GgufEntry& entry : metadata.entries()) {
    if (!entry.key.starts_with(prefix)) continue;
    if (++n_keys > kMaxMembers)
      fail(ErrorKind::file, where, "more than {} keys of {}", kMaxMembers,
           format::in_quotes(architecture));
    if (format::printable(entry.key, entry.key.size()) != entry.key)
      fail(ErrorKind::file, where, "metadata key {}: expected a readable name",
           format::in_quotes(entry.key));
    const std::string key = entry.key.substr(prefix.size());
    if (std::count(key.begin(), key.end(), '.') > kMaxDots)
      fail(ErrorKind::file, where, "{}: more than {} dots", format::in_quotes(entry.key), kMaxDots);
    Json* at = &config;
    for (size_t begin = 0;;) {
      const size_t dot = std::min(key.find('.', begin), key.size());
      at = &(*at)[key.substr(begin, dot - begin)];
      if (dot == key.size()) break;
      if (!at->is_null() && !at->is_object())
        fail(ErrorKind::file, where, "{}: a key and its part both have values",
             format::in_quotes(entry.key));
      begin = dot + 1;
    }
    if (!at->is_null())
      fail(ErrorKind::file, where, "{}: a key and its part both have values",
           format::in_quotes(entry.key));
    *at = value_json(entry.value, entry.key, where);
  }
  if (const auto layers = config.find("block_count"); layers != config.end())
    collapse_layers(config, Json(*layers));
  return config;
}

Json llama2c_config(const format::Llama2cHeader& header) {
  return {{"dim", header.dim},
          {"hidden_dim", header.hidden_dim},
          {"n_layers", header.n_layers},
          {"n_heads", header.n_heads},
          {"n_kv_heads", header.n_kv_heads},
          {"vocab_size", header.vocab_size},
          {"seq_len", header.seq_len},
          {"tied_head", header.tied_head}};
}

Json ggmf_config(const format::GgmfHeader& header) {
  return {{"n_vocab", header.n_vocab},
          {"n_embed", header.n_embed},
          {"n_layer", header.n_layer},
          {"data_type", header.data_type}};
}

}  // namespace tessera::convert
