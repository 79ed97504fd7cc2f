#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/text/score_file.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxJsonBytes = size_t{256} << 20;

bool starts_json_object(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (c == '{') return true;
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return false;
  }
  return false;
}

Tokenizer load_folder(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::is_regular_file(file))
    fail(ErrorKind::file, folder.string(), "no tokenizer.json in this folder");
  const auto config = folder / "tokenizer_config.json";
  const std::string config_text = std::filesystem::is_regular_file(config)
                                      ? read_text_file(config, kMaxJsonBytes)
                                      : std::string();
  return tokenizer_from_json(read_text_file(file, kMaxJsonBytes), file.string(), config_text);
}

}  // namespace

Tokenizer load_tokenizer(const std::filesystem::path& path, int32_t vocab_size) {
  if (std::filesystem::is_directory(path)) return load_folder(path);
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  if (bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0)
    fail(ErrorKind::file, path.string(), "a GGUF file; its tokenizer comes with its model");
  if (!starts_json_object(bytes)) return tokenizer_from_scores(bytes, path.string(), vocab_size);
  return tokenizer_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                             path.string());
}

}  // namespace tessera::text
