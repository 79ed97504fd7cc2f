// The tokenizer inside a GGUF file, from its metadata keys "tokenizer.ggml.*"
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section Tokenizer).
//
// Types and pre-tokenizers are data: gguf_tokenizers.json, compiled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// The metadata, each field named as its key; missing values stay empty.
struct GgufTokenizerData {
  std::string model;                // type
  std::string pre;                  // pre-tokenizer
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // by id
  std::vector<int32_t>
      token_types;  // by id; 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right"
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id, cls_id, sep_id;
  std::optional<int64_t> eot_id, eom_id;  // further stop tokens
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::optional<bool> lowercase, strip_accents;  // of the normalizer
  std::string precompiled_charsmap;              // bytes, of the unigram kind
  std::string chat_template, tool_template;
};

/// Interpretation of the metadata's names.
struct GgufKind {
  std::string kind;  // "byte_level", "merges", "scores", "unigram", "word_piece", ...
  std::vector<std::string> splits;  // of the byte-level pre-tokenizer
  bool ignore_merges = false;       // words that are tokens are not split
  // defaults
  bool add_bos = false, add_eos = false;
  std::optional<int64_t> bos, eos, sep, unk, pad;
};

/// Throws Error(file) for an unknown type or pre-tokenizer, with the known ones. A byte-level file
/// without a pre-tokenizer uses the "default" one, as in llama.cpp.
GgufKind gguf_kind(const GgufTokenizerData& data, const std::string& where);

/// The first name of every byte-level pre-tokenizer.
std::vector<std::string> gguf_pre_tokenizers();

/// The type's name in files: "byte_level", "scores" with byte fallback, "word_piece" or "unigram".
std::string gguf_tokenizer_model(const std::string& kind);

/// Converts WordPiece tokens of a file to BERT's notation.
void to_word_pieces(GgufTokenizerData& data);

/// The notation of a WordPiece token in files: the beginning of a word after U+2581, a continuation
/// without its prefix ("##").
std::string gguf_word_piece(std::string_view token);

/// `where` names the file. Throws Error(file) for an unknown type or pre-tokenizer (with the known
/// ones), lists of unequal length, or an invalid vocabulary. Ids of special tokens beyond the last
/// token are ignored, as in llama.cpp; Tokenizer::notes() lists them.
Tokenizer tokenizer_from_gguf(GgufTokenizerData data, const std::string& where);

}  // namespace tessera::text
