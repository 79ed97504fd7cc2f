// How a model makes one vector of a text: folders of sentence-transformers say it in modules.json,
// the configs of the modules (Transformer, Pooling, Dense, LayerNorm, Dropout, Normalize),
// sentence_bert_config.json and tokenizer_config.json (the longest text), and
// config_sentence_transformers.json (the prompts, the dimensions that are kept); GGUF files in
// ARCHITECTURE.pooling_type, the pooling alone. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/format/gguf.h"

namespace tessera::convert {

enum class Pooling {
  mean,           // of all tokens, those around the text included
  cls,            // the first token
  max,            // the largest value of each channel
  last,           // the last token
  mean_sqrt_len,  // the sum, divided by the root of the number of tokens
  weighted_mean,  // a token counts as often as its place: 1, 2, 3, ...
};
const char* name_of(Pooling pooling);
/// Throws Error(usage) that lists the names.
Pooling pooling_named(std::string_view name);
/// Names joined by "+".
std::string names_of(const std::vector<Pooling>& poolings);

enum class SentenceActivation { identity, tanh, relu, gelu, silu, sigmoid };

/// A module after the pooling. dense: activation(W x + b), plus x or R x where it has a residual;
/// layer_norm: weight * (x - mean) / sqrt(variance + 1e-5) + bias; normalize: x / |x|.
struct SentenceLayer {
  enum class Kind { dense, layer_norm, normalize };
  Kind kind = Kind::normalize;
  std::string where;                 // its file, for messages
  int64_t in = 0, out = 0;           // widths; 0 = any
  std::vector<float> weight = {};    // dense: [out, in]; layer_norm: [out]
  std::vector<float> bias = {};      // [out], or empty
  std::vector<float> residual = {};  // [out, in], or empty
  bool adds_input = false;
  SentenceActivation activation = SentenceActivation::identity;
};

struct SentenceModules {
  bool stated = false;                              // set by the model; else defaults
  std::vector<Pooling> poolings = {Pooling::mean};  // their vectors are concatenated
  std::vector<SentenceLayer> layers;                // after the pooling
  bool normalize = true;                            // to length 1, after all layers
  int64_t dimensions = 0;                           // the first ones are kept, after that; 0 = all
  int64_t max_tokens = 0;      // longer texts are cut; 0 = as many as the model takes
  bool lower_case = false;     // before the tokenizer's own normalizer
  std::string prompt;          // put before every text
  bool include_prompt = true;  // its tokens, and those before it, count in poolings
  std::map<std::string, std::string> prompts;  // those that the folder names
};

/// Modules of a folder, a run (its best or newest checkpoint) or a GGUF file, its default prompt
/// included. Throws Error(file) on modules or
/// orders of them other than a transformer, a pooling and, if any, modules of vectors.
SentenceModules sentence_modules_of(const std::filesystem::path& model);

/// Modules in the metadata of a GGUF file.
SentenceModules sentence_modules_of(const format::GgufFile& file, const std::string& where);

/// The poolings of a folder of sentence-transformers, by its Pooling module or, without
/// modules.json, by "1_Pooling"; none for other models. Throws Error(file).
std::vector<Pooling> poolings_of_folder(const std::filesystem::path& model);

/// Copies the pooling and later modules of a sentence-transformers folder into another of the same
/// model: modules.json, the modules with their weights, and their configs. Nothing for other
/// folders. The transformer's module is then the folder itself. Throws Error(file).
void copy_sentence_modules(const std::filesystem::path& from, const std::filesystem::path& to);
/// Of such a folder the prompts, the dimensions that are kept, the longest text and the case alone,
/// for modules that are written separately.
void copy_sentence_settings(const std::filesystem::path& from, const std::filesystem::path& to);
/// Writes poolings, over hidden states of this width, and whether vectors have length 1, as a GGUF
/// file has them: modules.json and "1_Pooling".
void write_sentence_modules(const SentenceModules& modules,
                            int64_t width,
                            const std::filesystem::path& to);

/// The number of a pooling in GGUF files; nullopt where they have none.
std::optional<int64_t> gguf_pooling(Pooling pooling);

}  // namespace tessera::convert
