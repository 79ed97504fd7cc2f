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

/// The id that must be chosen when `made` new tokens are there, if any must.
std::optional<int64_t> forced_id(const GenerateOptions& options, int64_t made);

/// A decoder continues its prompt; beside an encoder it answers it, from the start token on. A row
/// of a session goes on with the prompt.
Sequence first_sequence(const model::ModelSpec& spec,
                        const std::vector<int64_t>& prompt,
                        const Sequence* row = nullptr);

}  // namespace tessera::infer
