#include "tessera/convert/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/text/byte_tokenizer.h"
#include "tessera/text/gguf_tokenizer.h"

namespace tessera::convert {
namespace {

// what copy_tokenizer() writes besides the files of others
constexpr const char* kOwnFiles[] = {"tokenizer.gguf", "tokenizer.bin"};
constexpr char kPrefix[] = "tokenizer.ggml.";

template <class T, class Get>
std::vector<T> list(const format::GgufMetadata& metadata, const std::string& key, Get get) {
  std::vector<T> out;
  if (metadata.find(key) == nullptr) return out;
  for (const auto& value : get(key)) out.emplace_back(static_cast<T>(value));
  return out;
}

}  // namespace

namespace {

bool is_gguf(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
}

}  // namespace

std::optional<text::GgufTokenizerData> tokenizer_data_of(const format::GgufFile& file) {
  const format::GgufMetadata& metadata = file.metadata;
  const auto key = [](const char* name) { return std::string(kPrefix) + name; };
  if (metadata.find(key("model")) == nullptr) return std::nullopt;
  text::GgufTokenizerData data;
  const auto text_of = [&](const std::string& name) {
    return metadata.find(name) == nullptr ? std::string() : std::string(metadata.get_string(name));
  };
  const auto id_of = [&](const char* name) -> std::optional<int64_t> {
    if (metadata.find(key(name)) == nullptr) return std::nullopt;
    return metadata.get_i64(key(name));
  };
  const auto flag_of = [&](const char* name) -> std::optional<bool> {
    if (metadata.find(key(name)) == nullptr) return std::nullopt;
    return metadata.get_bool(key(name));
  };
  data.model = text_of(key("model"));
  data.pre = text_of(key("pre"));
  const auto strings = [&](const std::string& k) { return metadata.get_strings(k); };
  data.tokens = list<std::string>(metadata, key("tokens"), strings);
  data.merges = list<std::string>(metadata, key("merges"), strings);
  data.scores = list<float>(metadata, key("scores"),
                            [&](const std::string& k) { return metadata.get_numbers(k); });
  data.token_types = list<int32_t>(metadata, key("token_type"),
                                   [&](const std::string& k) { return metadata.get_integers(k); });
  data.bos_id = id_of("bos_token_id");
  data.eos_id = id_of("eos_token_id");
  data.unk_id = id_of("unknown_token_id");
  data.pad_id = id_of("padding_token_id");
  data.cls_id = id_of("cls_token_id");
  data.sep_id = id_of("seperator_token_id");  // as the format spells it
  data.add_bos = flag_of("add_bos_token");
  data.add_eos = flag_of("add_eos_token");
  data.add_space_prefix = flag_of("add_space_prefix");
  data.lowercase = flag_of("normalizer.lowercase");
  data.strip_accents = flag_of("normalizer.strip_accents");
  data.remove_extra_whitespaces = flag_of("remove_extra_whitespaces");
  for (const int64_t byte :
       list<int64_t>(metadata, key("precompiled_charsmap"),
                     [&](const std::string& k) { return metadata.get_integers(k); }))
    data.precompiled_charsmap += static_cast<char>(byte);
  data.chat_template = text_of("tokenizer.chat_template");
  data.tool_template = text_of("tokenizer.chat_template.tool_use");
  return data;
}

std::optional<text::Tokenizer> tokenizer_of(const format::GgufFile& file,
                                            const std::string& where) {
  auto data = tokenizer_data_of(file);
  if (!data) return std::nullopt;
  return text::tokenizer_from_gguf(std::move(*data), where);
}

bool holds_tokenizer(const std::filesystem::path& folder) {
  return text::tokenizer_file_in(folder) ||
         std::any_of(std::begin(kOwnFiles), std::end(kOwnFiles),
                     [&](const char* name) { return std::filesystem::exists(folder / name); });
}

text::Tokenizer find_tokenizer(const std::filesystem::path& path, int32_t vocab_size) {
  if (path == "bytes") return text::byte_tokenizer();
  if (std::filesystem::is_directory(path)) {
    if (text::tokenizer_file_in(path)) return text::load_tokenizer(path, vocab_size);
    for (const char* name : kOwnFiles)
      if (std::filesystem::exists(path / name)) return find_tokenizer(path / name, vocab_size);
    fail(ErrorKind::file, "tokenizer",
         "{}: no tokenizer.json, vocab.txt, tokenizer.gguf or tokenizer.bin in this folder",
         path.string());
  }
  if (is_gguf(path)) {
    auto tokenizer = tokenizer_of(format::open_gguf(path), path.string());
    if (!tokenizer)
      fail(ErrorKind::file, "tokenizer", "{}: the file holds no tokenizer", path.string());
    return *tokenizer;
  }
  return text::load_tokenizer(path, vocab_size);
}

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder) {
  if (std::filesystem::is_directory(from)) {
    copy_tokenizer_files(from, folder);
    for (const char* name : kOwnFiles)
      if (std::filesystem::exists(from / name))
        write_file_atomically(folder / name, read_text_file(from / name));
    return;
  }
  if (!is_gguf(from)) {
    const std::string content = read_text_file(from);
    write_file_atomically(folder / text::tokenizer_file_name(content), content);
    return;
  }
  const format::GgufFile file = format::open_gguf(from);
  std::vector<format::GgufEntry> entries;
  for (const format::GgufEntry& entry : file.metadata.entries())
    if (entry.key.rfind("tokenizer.", 0) == 0) entries.push_back(entry);
  if (!entries.empty()) format::write_gguf(folder / "tokenizer.gguf", entries, {});
}

}  // namespace tessera::convert
