#include "tessera/cli/model_source.h"

#include <fstream>

#include "tessera/base/error.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/train/recipe.h"

namespace tessera::cli {

bool is_spec_file(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return false;
  std::ifstream file(path);
  char c = 0;
  while (file.get(c) && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) {
  }
  return c == '{' || c == '/';
}

model::ModelSpec spec_of(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides,
                         const std::filesystem::path& families) {
  if (is_spec_file(path)) {
    spec::JsonLimits limits;
    limits.comments = true;
    const spec::Json json = spec::read_json_file(path, limits);
    // a training recipe holds its spec
    if ((json.contains("spec") || json.contains("extends")) && !json.contains("tessera"))
      return train::load_recipe(path, overrides).spec;
    return model::load_model_spec(path, overrides);
  }
  if (!overrides.empty())
    fail(ErrorKind::usage, "set", "{} is a model, not a spec file; --set changes specs only",
         path.string());
  return convert::load_checkpoint(path, {families}).spec;
}

}  // namespace tessera::cli
