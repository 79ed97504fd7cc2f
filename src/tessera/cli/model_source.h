// "SPEC_OR_MODEL" arguments: a spec file, a recipe that holds one, or anything a model can be
// loaded from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/convert/checkpoint.h"
#include "tessera/model/model_spec.h"

namespace tessera::cli {

/// Whether the file is JSON text (a spec), by content.
bool is_spec_file(const std::filesystem::path& path);

/// The spec of a spec file, of a model, or of a config.json of Hugging Face (also in a folder whose
/// weights are not there), which a line to stderr says; `overrides` only apply to spec files.
model::ModelSpec spec_of(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides,
                         const convert::LoadOptions& options);

/// The same as JSON: of a spec file or a recipe as its author wrote it, of a model resolved.
spec::Json spec_json_of(const std::filesystem::path& path,
                        const std::vector<std::string>& overrides,
                        const convert::LoadOptions& options);

/// Why a folder with a config.json has no weights that can be opened; "" where it has.
std::string lacking_weights(const std::filesystem::path& folder);

/// Lines to stderr about what is not as the file has it: matrices of fewer bits that are held in
/// float32, heads that the model is without.
void say_differences(const convert::Checkpoint& checkpoint);

}  // namespace tessera::cli
