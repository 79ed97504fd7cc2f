#include "tessera/convert/tokenizer.h"

#include <algorithm>

#include "tessera/convert/checkpoint_place.h"
#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/text_settings.h"
#include "tessera/format/is_gguf.h"
#include "tessera/format/safetensors.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::convert {
namespace {

// files of copy_tokenizer() in addition to those of others
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
  data.eot_id = id_of("eot_token_id");
  data.eom_id = id_of("eom_token_id");
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

std::string named_tokenizer(const std::filesystem::path& weights) {
  const bool folder = std::filesystem::is_directory(weights);
  const bool some = folder ? std::filesystem::exists(weights / "model.safetensors") ||
                                 std::filesystem::exists(weights / "model.safetensors.index.json")
                           : weights.extension() == ".safetensors";
  if (!some) return "";
  const format::TensorFile file =
      folder ? format::open_safetensors_folder(weights) : format::open_safetensors(weights);
  const auto found = file.metadata().find("tessera_tokenizer");
  if (found == file.metadata().end()) return "";
  const std::string& name = found->second;
  if (name.empty() || name.find('/') != std::string::npos || name.front() == '.')
    fail(ErrorKind::file, "tokenizer",
         "{}: tessera_tokenizer = \"{}\"; expected a name within the folder", weights.string(),
         name);
  return name;
}

namespace {

/// The tokenizer file of another name that a run's weights refer to; "" without one.
std::filesystem::path named_file(const std::filesystem::path& folder) {
  const std::string name = named_tokenizer(folder);
  return name.empty() || !std::filesystem::exists(folder / name) ? std::filesystem::path()
                                                                 : folder / name;
}

}  // namespace

bool holds_tokenizer(const std::filesystem::path& folder) {
  return text::tokenizer_file_in(folder) || !named_file(folder).empty() ||
         std::any_of(std::begin(kOwnFiles), std::end(kOwnFiles),
                     [&](const char* name) { return std::filesystem::exists(folder / name); });
}

text::Tokenizer find_tokenizer(const std::filesystem::path& given, int32_t vocab_size) {
  if (given == "bytes") return text::byte_tokenizer();
  const std::filesystem::path path = checkpoint_place(given);
  if (std::filesystem::is_directory(path)) {
    if (text::tokenizer_file_in(path)) return text::load_tokenizer(path, vocab_size);
    for (const char* name : kOwnFiles)
      if (std::filesystem::exists(path / name))
        return with_template_in(path, find_tokenizer(path / name, vocab_size));
    if (const std::string name = named_tokenizer(path); !name.empty())
      return with_template_in(
          path,
          find_tokenizer(name == "bytes" ? std::filesystem::path(name) : path / name, vocab_size));
    fail(
        ErrorKind::file, "tokenizer",
        "{}: no tokenizer.json, vocab.txt, tokenizer.model, vocab.json with merges.txt, vocab.json "
        "with source.spm and target.spm, tokenizer.gguf or tokenizer.bin in this folder",
        path.string());
  }
  if (named_tokenizer(path) == "bytes") return text::byte_tokenizer();
  if (format::is_gguf(path)) {
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
    if (const auto named = named_file(from); !named.empty() && !holds_tokenizer(folder))
      copy_tokenizer(named, folder);
    return;
  }
  if (!format::is_gguf(from)) {
    const std::string content = read_text_file(from);
    write_file_atomically(folder / text::tokenizer_file_name(content), content);
    return;
  }
  write_tokenizer_gguf(format::open_gguf(from), folder);
}

void write_tokenizer_gguf(const format::GgufFile& file, const std::filesystem::path& folder) {
  std::vector<format::GgufEntry> entries;
  for (const format::GgufEntry& entry : file.metadata.entries())
    if (entry.key.rfind("tokenizer.", 0) == 0) entries.push_back(entry);
  if (!entries.empty()) format::write_gguf(folder / "tokenizer.gguf", entries, {});
}

}  // namespace tessera::convert
