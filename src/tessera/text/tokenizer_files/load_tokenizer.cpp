#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/is_gguf.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_files/sentence_piece.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/character_tokenizer.h"
#include "tessera/text/tokenizer_files/companions.h"
#include "tessera/text/tokenizer_files/rank_file.h"
#include "tessera/text/tokenizer_files/score_file.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/vocab_file.h"
#include "tessera/text/tokenizer_files/vocab_merges.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxJsonBytes = size_t{256} << 20;
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char *kSourcePieces = "source.spm", *kTargetPieces = "target.spm";

/// Templates may be in files of their own, which override the config.
std::string with_templates(const std::string& config_text,
                           const std::string& own,
                           const std::string& for_tools,
                           const std::string& of_processor,
                           const std::string& where) {
  if (own.empty() && for_tools.empty() && of_processor.empty()) return config_text;
  using spec::Json;
  Json config = config_text.empty() ? Json::object() : spec::parse_json(config_text, where);
  if (!config.is_object()) return config_text;  // ConfiguredTokens rejects it
  Json named = Json::array();
  const auto set = [&](const char* name, const std::string& source) {
    for (Json& entry : named)
      if (entry.is_object() && entry.value("name", Json()) == name) {
        entry["template"] = source;
        return;
      }
    named.push_back({{"name", name}, {"template", source}});
  };
  const Json said = config.value("chat_template", Json());
  if (said.is_array()) named = said;
  if (said.is_string()) set("default", said);
  if (!of_processor.empty()) {
    const std::string file = where + ": chat_template.json";
    const Json processor = spec::parse_json(of_processor, file);
    if (!processor.is_object())
      fail(ErrorKind::file, file, "found {}; expected an object", spec::kind_of(processor));
    if (said.is_null() && processor.value("chat_template", Json()).is_string())
      set("default", processor["chat_template"]);
  }
  if (!own.empty()) set("default", own);
  if (!for_tools.empty()) set("tool_use", for_tools);
  config["chat_template"] = named;
  return config.dump();
}

std::string_view file_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A JSON file of a folder; "" without one. An empty file is damaged, not absent.
std::string json_in(const std::filesystem::path& folder, const char* name) {
  const auto path = folder / name;
  if (!std::filesystem::is_regular_file(path)) return {};
  std::string text = read_text_file(path, kMaxJsonBytes);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    fail(ErrorKind::file, path.string(), "the file is empty; expected a JSON object");
  return text;
}

Tokenizer load_folder(const std::filesystem::path& folder) {
  const auto file = tokenizer_file_in(folder);
  if (!file)
    fail(ErrorKind::file, folder.string(),
         "no tokenizer.json, vocab.txt, tokenizer.model, vocab.json with merges.txt, or vocab.json "
         "with source.spm and target.spm in this folder");
  const auto text_of = [&](const char* name) {
    const auto path = folder / name;
    return std::filesystem::is_regular_file(path) ? read_text_file(path, kMaxJsonBytes)
                                                  : std::string();
  };
  const std::string config =
      with_templates(json_in(folder, kConfig), text_of("chat_template.jinja"),
                     text_of("additional_chat_templates/tool_use.jinja"),
                     json_in(folder, "chat_template.json"), (folder / kConfig).string());
  const std::string added = json_in(folder, "added_tokens.json");
  const std::string special = json_in(folder, "special_tokens_map.json");
  const TokenizerCompanions companions{config, added, special};
  const std::string where = file->string(), name = file->filename();
  if (name == kSourcePieces) {
    const auto source = MappedFile::open(*file), target = MappedFile::open(folder / kTargetPieces);
    const std::string vocab = text_of("vocab.json"), target_vocab = text_of("target_vocab.json");
    return tokenizer_from_mapped_pieces({source->bytes(), target->bytes(), vocab, target_vocab},
                                        where, companions);
  }
  if (name.ends_with(".model")) {
    const auto mapped = MappedFile::open(*file);
    if (is_rank_file(file_text(mapped->bytes())))
      return tokenizer_from_gguf(read_rank_file(file_text(mapped->bytes()), where), where);
    return tokenizer_from_sentence_piece(mapped->bytes(), where, companions);
  }
  if (name == kConfig) return tokenizer_from_characters(config, where, companions);
  const std::string content = read_text_file(*file, kMaxJsonBytes);
  if (name == "vocab.json")
    return tokenizer_from_merges(content, text_of("merges.txt"), where, companions);
  return name == "vocab.txt" ? tokenizer_from_vocab(content, where, companions)
                             : tokenizer_from_json(content, where, companions);
}

}  // namespace

std::vector<std::filesystem::path> tokenizer_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  const auto file = tokenizer_file_in(folder);
  if (!file) return files;
  files.push_back(*file);
  if (file->filename() == "vocab.json") files.push_back(folder / "merges.txt");
  if (file->filename() == kSourcePieces)
    for (const char* name : {kTargetPieces, "vocab.json", "target_vocab.json"})
      if (std::filesystem::is_regular_file(folder / name)) files.push_back(folder / name);
  for (const char* name : kTokenizerCompanions)
    if (*file != folder / name && std::filesystem::is_regular_file(folder / name))
      files.push_back(folder / name);
  return files;
}

std::optional<std::filesystem::path> tokenizer_file_in(const std::filesystem::path& folder) {
  const auto there = [&](const char* name) {
    return std::filesystem::is_regular_file(folder / name);
  };
  for (const char* name : {"tokenizer.json", "vocab.txt", "tokenizer.model", "spiece.model"})
    if (there(name)) return folder / name;
  if (there("vocab.json") && there("merges.txt")) return folder / "vocab.json";
  if (there(kConfig) && is_character_config(json_in(folder, kConfig), (folder / kConfig).string()))
    return folder / kConfig;
  if (there("vocab.json") && there(kSourcePieces) && there(kTargetPieces))
    return folder / kSourcePieces;
  return std::nullopt;
}

const char* tokenizer_file_name(std::string_view content) {
  if (is_sentence_piece(content) || is_rank_file(content)) return "tokenizer.model";
  const size_t first = content.find_first_not_of(" \n\r\t");
  if (first != std::string_view::npos && content[first] == '{') return "tokenizer.json";
  // the first length and score of a token score file hold zero bytes, a text does not
  const std::string_view head = content.substr(0, 64);
  const bool is_text = !head.empty() && head.find('\0') == std::string_view::npos;
  return is_text ? "vocab.txt" : "tokenizer.bin";
}

Tokenizer load_tokenizer(const std::filesystem::path& path, int32_t vocab_size) {
  if (std::filesystem::is_directory(path)) return load_folder(path);
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const std::string_view content = file_text(bytes);
  if (format::is_gguf(content))
    fail(ErrorKind::file, path.string(), "a GGUF file; its tokenizer comes with its model");
  const std::string_view kind = tokenizer_file_name(content);
  if (kind == "tokenizer.json") return tokenizer_from_json(content, path.string());
  if (is_rank_file(content))
    return tokenizer_from_gguf(read_rank_file(content, path.string()), path.string());
  if (kind == "tokenizer.model") return tokenizer_from_sentence_piece(bytes, path.string());
  if (kind == "vocab.txt") return tokenizer_from_vocab(content, path.string());
  return tokenizer_from_scores(bytes, path.string(), vocab_size);
}

}  // namespace tessera::text
