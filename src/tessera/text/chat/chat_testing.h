// Shared by tests of conversations.
#pragma once

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

namespace tessera::text {

/// A byte tokenizer with control tokens, one of them not marked special; those in `further` are.
inline Tokenizer chat_tokenizer(const std::vector<std::string>& further = {},
                                const std::string& chat_template = "") {
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
    added.push_back(added_token_json(id++, content, special));
  spec::Json file = empty_tokenizer_json(std::move(added));
  file["pre_tokenizer"] = file["decoder"] = byte_level_json(true);
  file["model"] = bpe_json(std::move(vocabulary), spec::Json::array());
  const std::string config =
      chat_template.empty() ? "" : spec::Json{{"chat_template", chat_template}}.dump();
  return tokenizer_from_json(file.dump(), "test", {config});
}

}  // namespace tessera::text
