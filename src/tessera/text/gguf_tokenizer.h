// The tokenizer inside a GGUF file, from its metadata keys "tokenizer.ggml.*"
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section Tokenizer).
//
// Kinds and pre-tokenizers are data: gguf_tokenizers.json, compiled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/text/tokenizer.h"

namespace tessera::text {

/// The metadata, each field named as its key; what a file lacks stays empty.
struct GgufTokenizerData {
  std::string model;                // which kind
  std::string pre;                  // which pre-tokenizer
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // by id
  std::vector<int32_t>
      token_types;  // by id; 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right"
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string precompiled_charsmap;  // bytes, of the unigram kind
  std::string chat_template, tool_template;
};

/// The first name of every pre-tokenizer of the byte-level kind.
std::vector<std::string> gguf_pre_tokenizers();

/// What files call a kind of tokenizer: "byte_level", "scores" with bytes to fall back on, or
/// "unigram".
std::string gguf_tokenizer_model(const std::string& kind);

/// `where` names the file. Throws Error(file) on an unknown kind or pre-tokenizer (naming those
/// that are known), lists of unequal length, ids out of range, or a broken vocabulary.
Tokenizer tokenizer_from_gguf(GgufTokenizerData data, const std::string& where);

}  // namespace tessera::text
