#include "tessera/convert/model_types.h"

#include <map>

#include "tessera/spec/json.h"

namespace tessera::convert {

extern const char* const kModelTypesJson;

namespace {

const spec::Json& table_of_types() {
  static const spec::Json table = spec::parse_json(kModelTypesJson, "model_types.json");
  return table;
}

}  // namespace

std::vector<ModelType> model_types() {
  std::map<std::string, ModelType> types;
  for (const auto& [of, names] : table_of_types().at("classes").items())
    for (const spec::Json& name : names) types[name.get<std::string>()].classes.push_back(of);
  std::vector<ModelType> out;
  for (auto& [name, type] : types)
    out.push_back({name, std::move(type.classes), table_of_types().at("refused").value(name, "")});
  return out;
}

std::string model_types_version() {
  return table_of_types().at("version").get<std::string>();
}

}  // namespace tessera::convert
