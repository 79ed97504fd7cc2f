// How a model makes one vector of a text: folders of sentence-transformers say it in modules.json,
// the pooling module's config.json, sentence_bert_config.json (the longest text), and
// config_sentence_transformers.json (the prompts); GGUF files in ARCHITECTURE.pooling_type, the
// pooling alone. Torch-free.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::convert {

enum class Pooling {
  mean,  // of all tokens, those around the text included
  cls,   // the first token
  max,   // the largest value of each channel
  last,  // the last token
};
const char* name_of(Pooling pooling);
/// Throws Error(usage) that lists the names.
Pooling pooling_named(std::string_view name);

struct SentenceModules {
  bool said = false;  // by the model; else these are the usual ones
  Pooling pooling = Pooling::mean;
  bool normalize = true;       // to length 1
  int64_t max_tokens = 0;      // longer texts are cut; 0 = as many as the model takes
  std::string prompt;          // put before every text
  bool include_prompt = true;  // its tokens, and those before it, count in mean and max
  std::map<std::string, std::string> prompts;  // those that the folder names
};

/// What a folder or GGUF file says, its default prompt included. Throws Error(file) on modules or
/// orders of them other than a transformer, a pooling that is known and, if any, the length of 1.
SentenceModules sentence_modules_of(const std::filesystem::path& model);

/// The number of a pooling in GGUF files; nullopt where they have none.
std::optional<int64_t> gguf_pooling(Pooling pooling);

}  // namespace tessera::convert
