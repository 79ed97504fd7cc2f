// Specs from files, changed on the command line.
#include "tessera/model/model_spec.h"

namespace tessera::model {

void apply_override(Json& json, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0)
    fail(ErrorKind::usage, "set", "\"{}\"; expected path.to.key=value", assignment);
  const std::string_view path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  Json value;
  try {
    value = spec::parse_json(text, "set");
  } catch (const Error&) {
    value = std::string(text);  // --set ffn.act=gelu
  }
  Json* at = &json;
  for (size_t begin = 0; begin < path.size();) {
    if (path[begin] == '[') {
      const size_t close = path.find(']', begin);
      const std::string index(
          path.substr(begin + 1, close == std::string_view::npos ? 0 : close - begin - 1));
      if (index.empty() || index.size() > 6 ||
          index.find_first_not_of("0123456789") != std::string::npos)
        fail(ErrorKind::usage, "set", "\"{}\": expected [number]", path);
      if (!at->is_array() || std::stoul(index) >= at->size())
        fail(ErrorKind::usage, "set", "\"{}\": there is no element [{}]", path, index);
      at = &(*at)[std::stoul(index)];
      begin = close + 1;
    } else {
      const size_t end = std::min(path.find_first_of(".[", begin), path.size());
      if (at->is_string()) *at = Json{{"type", *at}};  // the short form of a part
      if (!at->is_object() && !at->is_null())
        fail(ErrorKind::usage, "set", "\"{}\": {} is not an object", path, path.substr(0, begin));
      at = &(*at)[std::string(path.substr(begin, end - begin))];
      begin = end;
    }
    if (begin < path.size() && path[begin] == '.') ++begin;
  }
  *at = std::move(value);
}

ModelSpec load_model_spec(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides) {
  spec::JsonLimits limits;
  limits.comments = true;
  Json json = spec::read_json_file(path, limits);
  for (const std::string& assignment : overrides) apply_override(json, assignment);
  return read_model_spec(json);
}

}  // namespace tessera::model
