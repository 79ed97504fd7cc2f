// The model types of transformers' Auto classes for text, and whether a family reads them: data of
// model_types.json, which tools/golden/model_types.py writes.
#pragma once

#include <string>
#include <vector>

namespace tessera::convert {

struct ModelType {
  std::string name;                  // model_type of config.json
  std::vector<std::string> classes;  // "AutoModelForCausalLM", ...
  std::string refused;               // why no family reads it; "" where one does
};

/// By name.
std::vector<ModelType> model_types();
/// The version of transformers whose types these are.
std::string model_types_version();

}  // namespace tessera::convert
