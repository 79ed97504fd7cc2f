// Model files of the sentencepiece library (tokenizer.model, spiece.model): a protobuf message
// ModelProto (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto)
// with pieces, their scores and types, and normalization rules. Supports BPE and Unigram models,
// with the library's ids (Kudo and Richardson 2018, arXiv:1808.06226).
//
// Special tokens around a text, additional tokens and the chat template come from the files next to
// it, as with tokenizer.json: `tokenizer_class` Llama, CodeLlama and Gemma add the begin token
// before a text, T5 and MT5 the end token after it, unless `add_bos_token`, `add_eos_token`
// override it. Without a class it follows from the model: byte pieces (Llama), or no begin token
// (T5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer_files/configured_tokens.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

struct SentencePieceModel {
  bool bpe = false;  // otherwise Unigram
  std::vector<std::string> pieces;
  std::vector<float> scores;
  std::vector<int32_t> types;  // numbered as in GgufTokenizerData
  std::optional<int32_t> unk, bos, eos, pad;
  bool byte_fallback = false;
  std::string charsmap;  // precompiled; empty = none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;
};

/// True if bytes begin as such a file: a piece of text, a score and a type.
bool is_sentence_piece(std::string_view content);

/// Throws Error(file) for a truncated or invalid message, other model types (word, char), pieces
/// that are not UTF-8, and unsupported settings that change ids.
SentencePieceModel read_sentence_piece(std::span<const std::byte> file, const std::string& where);

/// As GGUF metadata.
GgufTokenizerData gguf_data_of(SentencePieceModel model);

/// Throws Error(file) as read_sentence_piece() does, Error(spec) for a `tokenizer_class` whose ids
/// differ from those of its pieces (XLMRoberta, Pegasus, ...).
Tokenizer tokenizer_from_sentence_piece(std::span<const std::byte> file,
                                        const std::string& where,
                                        const TokenizerCompanions& companions = {});

/// Models whose ids a vocab.json states, one model for sources and one for targets
/// (MarianTokenizer): contents of source.spm, target.spm, vocab.json and target_vocab.json.
struct MappedPieces {
  std::span<const std::byte> source, target;
  std::string_view vocab;
  std::string_view target_vocab = {};  // read with `separate_vocabs` of tokenizer_config.json
};

/// The tokenizer of targets, with that of sources as Tokenizer::of_source(). A piece that its
/// vocabulary lacks is the unknown token; a language code (">>fra<<") at the start of a text is one
/// token; the end token follows a text. Throws Error(file) as read_sentence_piece() does, for an
/// invalid vocabulary, or one without the end token and the unknown token; Error(spec) for another
/// `tokenizer_class`.
Tokenizer tokenizer_from_mapped_pieces(const MappedPieces& files,
                                       const std::string& where,
                                       const TokenizerCompanions& companions = {});

}  // namespace tessera::text
