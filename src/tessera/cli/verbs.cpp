// The verbs and which of the two programs has them: `tessera` itself loads no libtorch, so that
// what needs no tensors answers at once; it hands the others to `tessera-tensors` beside it.
#include "tessera/cli/cli.h"

namespace tessera::cli {

const std::vector<Verb>& plain_verbs() {
  static const std::vector<Verb> verbs = {
      {"tokenize", "Text to token ids, and back", add_tokenize},
      {"train-tokenizer", "A byte-level BPE tokenizer from texts, as Hugging Face folders hold it",
       add_train_tokenizer},
      {"show", "Prints a spec (or a model's), resolved on demand", add_show},
      {"plan", "Parameters, FLOPs and state bytes of a spec or model", add_plan},
      {"list", "Mechanisms and families, a line each", add_list},
      {"convert", "Reads any supported checkpoint, writes tessera or Hugging Face folders and GGUF",
       add_convert},
      {"data", "Shows what a training run will read and be asked, before it starts", add_data},
      {"quantize", "A model's matrices in fewer bits, as a GGUF file that llama.cpp reads too",
       add_quantize},
      {"runs", "Compares training runs: a table, a page with plots, live while they train",
       add_runs},
      {"docs", "Writes the generated pages and the JSON schema", add_docs},
  };
  return verbs;
}

}  // namespace tessera::cli
