#include "tessera/infer/beam.h"

namespace tessera::infer {

Generations beam_search(const model::Model& model,
                        const text::Tokenizer* tokenizer,
                        const std::vector<std::vector<int64_t>>& prompts,
                        const GenerateOptions& options,
                        const BeamOptions& beams) {
  if (beams.beams < 1)
    fail(ErrorKind::usage, "generate", "beams = {}; expected at least 1", beams.beams);
  if (!options.stop_strings.empty())
    fail(
        ErrorKind::usage, "generate",
        "stop strings end a text that is being written, and beams rewrite theirs; use stop tokens");
  if (options.session != nullptr)
    fail(ErrorKind::usage, "generate",
         "a session goes on with what one row has said, and a search keeps many; use beams = 1");
  return run_requests(model, tokenizer, prompts, options, beams);
}

}  // namespace tessera::infer
