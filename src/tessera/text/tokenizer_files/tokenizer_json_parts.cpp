#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

#include <utility>

namespace tessera::text {

using spec::Json;

Json empty_tokenizer_json(Json added_tokens) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", std::move(added_tokens)},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", nullptr}};
}

Json added_token_json(int64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json vocabulary_json(const std::vector<std::string>& tokens) {
  Json vocabulary = Json::object();
  // operator[] would look through all before it
  auto& members = vocabulary.get_ref<Json::object_t&>();
  for (size_t id = 0; id < tokens.size(); ++id) members.push_back({tokens[id], id});
  return vocabulary;
}

Json bpe_json(Json vocabulary, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json byte_level_json(bool use_regex, bool add_prefix_space) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

}  // namespace tessera::text
