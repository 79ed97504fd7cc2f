#include "tessera/cli/model_source.h"

#include <fstream>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
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
  const convert::Checkpoint checkpoint = convert::load_checkpoint(path, {families});
  say_differences(checkpoint);
  return checkpoint.spec;
}

void say_differences(const convert::Checkpoint& checkpoint) {
  for (const std::string& remark : checkpoint.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  if (!checkpoint.lost_heads.empty())
    fmt::print(stderr, "tessera: left out of this file: the head for {}\n",
               fmt::join(checkpoint.lost_heads, " and for "));
}

}  // namespace tessera::cli
