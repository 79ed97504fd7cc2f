// "SPEC_OR_MODEL" arguments: a spec file, a recipe with a spec, or any model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/convert/checkpoint.h"
#include "tessera/model/model_spec.h"

namespace tessera::cli {

/// True if the file is JSON text (a spec), by content.
bool is_spec_file(const std::filesystem::path& path);

/// True for a training recipe: JSON with a spec, or with a model to begin from and data.
bool is_recipe_file(const std::filesystem::path& path);

/// The spec of a spec file, of a model, or of a config.json of Hugging Face (also in a folder
/// without its weights, with a line on stderr); `overrides` apply to spec files only.
model::ModelSpec spec_of(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides,
                         const convert::LoadOptions& options);

/// The same as JSON: a spec file or a recipe as written, a model resolved.
spec::Json spec_json_of(const std::filesystem::path& path,
                        const std::vector<std::string>& overrides,
                        const convert::LoadOptions& options);

/// Why a folder with a config.json has no usable weights; "" if it has.
std::string lacking_weights(const std::filesystem::path& folder);

/// Lines on stderr about differences from the file: matrices of few bits that are stored as
/// float32, heads that the model lacks.
void say_differences(const convert::Checkpoint& checkpoint);

}  // namespace tessera::cli
