// What every way of generating checks and begins with.
#pragma once

#include "tessera/infer/feeder.h"
#include "tessera/infer/generate.h"

namespace tessera::infer {

/// Throws unless the model can generate and every prompt fits, behind its row of a session where
/// there is one; returns the longest sequence of
/// tokens (of targets, beside an encoder) that the model takes, 0 = any.
int64_t check_request(const model::Model& model,
                      const std::vector<std::vector<int64_t>>& prompts,
                      const GenerateOptions& options);

/// A decoder continues its prompt; beside an encoder it answers it, from the start token on. A row
/// of a session goes on with the prompt.
Sequence first_sequence(const model::ModelSpec& spec,
                        const std::vector<int64_t>& prompt,
                        const Sequence* row = nullptr);

}  // namespace tessera::infer
