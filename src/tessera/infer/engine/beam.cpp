#include "tessera/infer/engine/beam.h"

namespace tessera::infer {

Generations beam_search(const model::Model& model,
                        const text::Tokenizer* tokenizer,
                        const std::vector<std::vector<int64_t>>& prompts,
                        const GenerateOptions& options,
                        const BeamOptions& beams) {
  if (beams.beams < 1)
    fail(ErrorKind::usage, "generate", "beams = {}; expected at least 1", beams.beams);
  if (!options.stop_strings.empty() && tokenizer == nullptr)
    fail(ErrorKind::usage, "generate",
         "stop strings for a model without a tokenizer; use stop tokens");
  if (options.session != nullptr)
    fail(ErrorKind::usage, "generate",
         "a session has one sequence, beam search several; use beams = 1");
  return run_requests(model, tokenizer, prompts, options, beams);
}

}  // namespace tessera::infer
