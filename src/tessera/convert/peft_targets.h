// Which modules an adapter of PEFT has products or factors for, by its config: PEFT makes
// those and ignores tensors of others (tuners_utils.check_target_module_exists).
#pragma once

#include <string>

#include "tessera/convert/peft_config.h"
#include "tessera/convert/peft_file.h"

namespace tessera::convert {

/// Throws Error(file) for a product or factors of a module that target_modules,
/// layers_to_transform or exclude_modules leave out. `head` is the module of the output matrix,
/// under the file's names or the family's. A config without target_modules leaves the choice to
/// PEFT's table of model types, and is not checked; nor are the modules of target_parameters.
void check_targets(const PeftFile& file,
                   const PeftConfig& config,
                   const std::string& tensors_file,
                   const std::string& head);

}  // namespace tessera::convert
