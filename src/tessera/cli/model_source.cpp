#include "tessera/cli/model_source.h"

#include <fstream>
#include <optional>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::cli {

bool is_spec_file(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return false;
  std::ifstream file(path);
  char c = 0;
  while (file.get(c) && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) {
  }
  return c == '{' || c == '/';
}

namespace {

/// JSON of a spec file or a recipe; nothing of models and of Python's JSON, which spec files are
/// not.
std::optional<spec::Json> own_json(const std::filesystem::path& path) {
  if (!is_spec_file(path)) return std::nullopt;
  const std::string text = read_text_file(path);
  if (text.find("\"model_type\"") != text.npos && text.find("\"tessera\"") == text.npos)
    return std::nullopt;
  spec::JsonLimits limits;
  limits.comments = true;
  return spec::read_json_file(path, limits);
}

/// A training recipe holds its spec, or begins from a model that has one.
bool is_recipe(const spec::Json& json) {
  const bool begins = json.contains("init") && json.contains("data");
  return (json.contains("spec") || json.contains("extends") || begins) && !json.contains("tessera");
}

/// The spec of a config.json, without weights.
model::ModelSpec spec_of_config(const std::filesystem::path& config,
                                const convert::LoadOptions& options,
                                const std::string& why) {
  const convert::Checkpoint checkpoint = convert::load_config(config, options);
  say_differences(checkpoint);
  fmt::print(stderr,
             "tessera: planned from {} alone{}; heads that only the weights show are missing\n",
             config.string(), why);
  return checkpoint.spec;
}

}  // namespace

bool is_recipe_file(const std::filesystem::path& path) {
  const std::optional<spec::Json> json = own_json(path);
  return json && is_recipe(*json);
}

std::string lacking_weights(const std::filesystem::path& folder) {
  try {
    format::open_tensor_folder(folder);
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::file) throw;
    return error.what();
  }
}

model::ModelSpec spec_of(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides,
                         const convert::LoadOptions& options) {
  const auto refuse_overrides = [&] {
    if (!overrides.empty())
      fail(ErrorKind::usage, "set", "{} is a model, not a spec file; --set changes specs only",
           path.string());
  };
  if (is_spec_file(path)) {
    const std::optional<spec::Json> json = own_json(path);
    if (!json) {
      refuse_overrides();
      return spec_of_config(path, options, "");
    }
    return is_recipe(*json) ? train::load_recipe(path, overrides, options.keys.ignore).spec
                            : model::load_model_spec(path, overrides);
  }
  refuse_overrides();
  if (const auto config = path / "config.json"; std::filesystem::is_regular_file(config))
    if (const std::string why = lacking_weights(path); !why.empty())
      return spec_of_config(config, options,
                            fmt::format(", as the weights are not there ({})", why));
  const convert::Checkpoint checkpoint = convert::load_checkpoint(path, options);
  say_differences(checkpoint);
  return checkpoint.spec;
}

spec::Json spec_json_of(const std::filesystem::path& path,
                        const std::vector<std::string>& overrides,
                        const convert::LoadOptions& options) {
  std::optional<spec::Json> json = own_json(path);
  if (json && is_recipe(*json)) {
    const train::Recipe recipe = train::load_recipe(path, overrides, options.keys.ignore);
    return recipe.written.contains("spec") ? recipe.written["spec"] : model::resolve(recipe.spec);
  }
  if (!json) return model::resolve(spec_of(path, overrides, options));
  for (const std::string& assignment : overrides) model::apply_override(*json, assignment);
  return *json;
}

void say_differences(const convert::Checkpoint& checkpoint) {
  for (const std::string& remark : checkpoint.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  if (!checkpoint.lost_heads.empty())
    fmt::print(stderr, "tessera: unused head of this file: {}\n",
               fmt::join(checkpoint.lost_heads, " and "));
}

}  // namespace tessera::cli
