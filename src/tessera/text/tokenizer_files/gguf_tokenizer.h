// The tokenizer inside a GGUF file, from its metadata keys "tokenizer.ggml.*"
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section Tokenizer).
//
// Kinds and pre-tokenizers are data: gguf_tokenizers.json, compiled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

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
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id, cls_id, sep_id;
  std::optional<int64_t> eot_id, eom_id;  // further tokens that end an answer
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::optional<bool> lowercase, strip_accents;  // of the normalizer
  std::string precompiled_charsmap;              // bytes, of the unigram kind
  std::string chat_template, tool_template;
};

/// What the metadata's names stand for.
struct GgufKind {
  std::string kind;                 // "byte_level", "scores", "unigram", "word_piece", ...
  std::vector<std::string> splits;  // of the byte-level pre-tokenizer
  bool ignore_merges = false;       // whole words that are tokens stay whole
  // where the file does not say it
  bool add_bos = false, add_eos = false;
  std::optional<int64_t> bos, eos, sep, unk, pad;
};

/// Throws Error(file) on an unknown kind or pre-tokenizer, naming those that are known. A
/// byte-level file without a pre-tokenizer is cut by the "default" one, as llama.cpp does.
GgufKind gguf_kind(const GgufTokenizerData& data, const std::string& where);

/// The first name of every pre-tokenizer of the byte-level kind.
std::vector<std::string> gguf_pre_tokenizers();

/// What files call a kind of tokenizer: "byte_level", "scores" with bytes to fall back on,
/// "word_piece" or "unigram".
std::string gguf_tokenizer_model(const std::string& kind);

/// The tokens of a file of WordPiece as BERT's vocabulary has them.
void to_word_pieces(GgufTokenizerData& data);

/// How files of WordPiece write a token that is no special one: what begins a word behind U+2581,
/// what continues one as it is, without the prefix that it has in a vocabulary of ours ("##").
std::string gguf_word_piece(std::string_view token);

/// `where` names the file. Throws Error(file) on an unknown kind or pre-tokenizer (naming those
/// that are known), lists of unequal length, or a broken vocabulary. Ids of special tokens beyond
/// the last token are not used, as in llama.cpp; Tokenizer::notes() names them.
Tokenizer tokenizer_from_gguf(GgufTokenizerData data, const std::string& where);

}  // namespace tessera::text
