#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/text/score_file.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizer_json.h"
#include "tessera/text/vocab_file.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxJsonBytes = size_t{256} << 20;

Tokenizer load_folder(const std::filesystem::path& folder) {
  const auto file = tokenizer_file_in(folder);
  if (!file)
    fail(ErrorKind::file, folder.string(), "no tokenizer.json or vocab.txt in this folder");
  const auto text_of = [&](const char* name) {
    const auto path = folder / name;
    return std::filesystem::is_regular_file(path) ? read_text_file(path, kMaxJsonBytes)
                                                  : std::string();
  };
  const std::string config = text_of("tokenizer_config.json");
  const std::string content = read_text_file(*file, kMaxJsonBytes);
  if (file->filename() != "vocab.txt") return tokenizer_from_json(content, file->string(), config);
  const std::string added = text_of("added_tokens.json");
  const std::string special = text_of("special_tokens_map.json");
  return tokenizer_from_vocab(content, file->string(), {config, added, special});
}

}  // namespace

std::vector<std::filesystem::path> tokenizer_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  const auto file = tokenizer_file_in(folder);
  if (!file) return files;
  files.push_back(*file);
  for (const char* name : {"tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"})
    if (std::filesystem::is_regular_file(folder / name)) files.push_back(folder / name);
  return files;
}

std::optional<std::filesystem::path> tokenizer_file_in(const std::filesystem::path& folder) {
  for (const char* name : {"tokenizer.json", "vocab.txt"})
    if (std::filesystem::is_regular_file(folder / name)) return folder / name;
  return std::nullopt;
}

const char* tokenizer_file_name(std::string_view content) {
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
  const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (content.starts_with("GGUF"))
    fail(ErrorKind::file, path.string(), "a GGUF file; its tokenizer comes with its model");
  const std::string_view kind = tokenizer_file_name(content);
  if (kind == "tokenizer.json") return tokenizer_from_json(content, path.string());
  if (kind == "vocab.txt") return tokenizer_from_vocab(content, path.string());
  return tokenizer_from_scores(bytes, path.string(), vocab_size);
}

}  // namespace tessera::text
