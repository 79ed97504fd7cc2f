#include "tessera/cli/model_source.h"

#include <fstream>

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

/// The spec that a config.json says, without weights.
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
    // Python's JSON, which spec files are not
    const std::string text = read_text_file(path);
    if (text.find("\"model_type\"") != text.npos && text.find("\"tessera\"") == text.npos) {
      refuse_overrides();
      return spec_of_config(path, options, "");
    }
    spec::JsonLimits limits;
    limits.comments = true;
    const spec::Json json = spec::read_json_file(path, limits);
    // a training recipe holds its spec, or begins from a model that has one
    const bool begins = json.contains("init") && json.contains("data");
    if ((json.contains("spec") || json.contains("extends") || begins) && !json.contains("tessera"))
      return train::load_recipe(path, overrides, options.keys.ignore).spec;
    return model::load_model_spec(path, overrides);
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

void say_differences(const convert::Checkpoint& checkpoint) {
  for (const std::string& remark : checkpoint.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  if (!checkpoint.lost_heads.empty())
    fmt::print(stderr, "tessera: unused head of this file: {}\n",
               fmt::join(checkpoint.lost_heads, " and "));
}

}  // namespace tessera::cli
