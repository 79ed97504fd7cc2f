// Components of a tokenizer in the order of processing. Loaders fill this struct.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/text/tokenizer/added_tokens.h"
#include "tessera/text/tokenizer/decoder.h"
#include "tessera/text/tokenizer/model.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"

namespace tessera::text {

class Tokenizer;

struct TokenizerParts {
  std::string where;                  // names the source in errors
  bool any_bytes = false;             // input need not be UTF-8
  bool truncates_left = false;        // truncates at the beginning
  bool split_special = false;         // special tokens written in a text always stay text
  std::vector<AddedToken> added;      // found before tokenization of the rest
  NormalizerPointer normalizer;       // may be null
  PreTokenizerPointer pre_tokenizer;  // may be null
  ModelPointer model;
  std::vector<int32_t> prefix;  // added around a text on request
  std::vector<int32_t> suffix;
  std::optional<std::vector<int32_t>> between = {};  // between two texts; null = suffix
  std::vector<DecodeStagePointer> decoder;
  int32_t drop_space_after = kNoToken;  // decoding drops the space that follows this token
  std::optional<int32_t> bos, eos, unk, pad;
  std::vector<int32_t> further_ends = {};  // stop tokens in addition to eos
  std::vector<std::string> notes = {};     // ignored problems, for people
  std::vector<std::pair<std::string, std::string>> special_roles = {};  // role, token
  std::string chat_template = {}, tool_template = {};
  std::shared_ptr<const Tokenizer> source = nullptr;  // of sources; null = the same
};

}  // namespace tessera::text
