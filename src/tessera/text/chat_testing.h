// What tests of conversations share.
#pragma once

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::text {

/// Bytes whose tokens are bytes, with control tokens, one of them not called special; `further`
/// ones are.
inline Tokenizer chat_tokenizer(const std::vector<std::string>& further = {}) {
  spec::Json vocabulary = spec::Json::object();
  const std::string alphabet = "abcdefghijklmnopqrstuvwxyz<|>_/Ġ";
  int id = 0;
  for (const char c : alphabet.substr(0, alphabet.size() - 2)) vocabulary[std::string(1, c)] = id++;
  for (const char* c : {"Ġ", "Ċ"}) vocabulary[c] = id++;
  spec::Json added = spec::Json::array();
  std::vector<std::pair<std::string, bool>> control = {
      {"<|start|>", true}, {"<|end|>", true}, {"<think>", false}, {"<free>", false}};
  for (const std::string& content : further) control.emplace_back(content, true);
  for (const auto& [content, special] : control)
    added.push_back({{"id", id++},
                     {"content", content},
                     {"special", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  const spec::Json file = {{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens", added},
                           {"normalizer", nullptr},
                           {"pre_tokenizer",
                            {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", true}}},
                           {"post_processor", nullptr},
                           {"decoder",
                            {{"type", "ByteLevel"},
                             {"add_prefix_space", true},
                             {"trim_offsets", true},
                             {"use_regex", true}}},
                           {"model",
                            {{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"ignore_merges", false},
                             {"vocab", vocabulary},
                             {"merges", spec::Json::array()}}}};
  return tokenizer_from_json(file.dump(), "test");
}

}  // namespace tessera::text
