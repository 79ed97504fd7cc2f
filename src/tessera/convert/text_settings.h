// Settings of text next to the weights of a model or an adapter:
// files with the names that they have in folders of Hugging Face.
//   chat_template.jinja      before the template of the tokenizer
//   generation_config.json   "eos_token_id": what ends a text
//   modules.json             how a vector is made (sentence_modules.h)
// Training writes them next to an adapter whose answers or vectors depend on them. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/convert/gguf_model.h"
#include "tessera/convert/sentence_modules.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::convert {

struct TextSettings {
  std::string chat_template = {};  // "" = none
  std::vector<int64_t> ends = {};  // token ids
  SentenceModules sentences = {};  // defaults if it has none
};

/// Those of an adapter: a folder, or a run's best or newest checkpoint. Ids beyond `vocab` are left
/// out. Throws Error(file) for files that are no such ones.
TextSettings settings_of_adapter(const std::filesystem::path& adapter, int64_t vocab);

/// The tokenizer of a model's folder with the chat template of chat_template.jinja there, if any.
text::Tokenizer with_template_in(const std::filesystem::path& folder,
                                 const text::Tokenizer& tokenizer);

/// How a model with adapters makes a vector: by the last of them with poolings, else by the
/// model's own. The longest text and the case are the model's where an adapter sets none.
SentenceModules sentence_modules_of(const std::filesystem::path& model,
                                    const std::vector<std::string>& adapters);

/// Puts an adapter's settings into the folder of a model that has it in its weights, or of the
/// adapter in another form.
void write_settings_of_adapter(const std::filesystem::path& adapter,
                               int64_t vocab,
                               const std::filesystem::path& folder);
/// The same of a GGUF file. Throws Error(spec) for a pooling that GGUF files do not have.
void set_settings_of_adapter(const std::filesystem::path& adapter, int64_t vocab, GgufModel& model);

}  // namespace tessera::convert
