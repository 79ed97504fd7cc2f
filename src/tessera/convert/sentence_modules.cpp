#include "tessera/convert/sentence_modules.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"
#include "tessera/spec/json.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr std::array kPoolings = {std::pair{Pooling::mean, "mean"}, std::pair{Pooling::cls, "cls"},
                                  std::pair{Pooling::max, "max"}, std::pair{Pooling::last, "last"}};

/// A file that a module names, within the folder.
fs::path inside(const fs::path& folder, const std::string& name, const std::string& where) {
  const fs::path path(name);
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end())
    fail(ErrorKind::file, where, "path \"{}\"; expected one within the folder",
         name.substr(0, 100));
  return folder / path;
}

Pooling pooling_of(const Json& config, const std::string& where) {
  static const std::map<std::string, Pooling> known = {{"pooling_mode_mean_tokens", Pooling::mean},
                                                       {"pooling_mode_cls_token", Pooling::cls},
                                                       {"pooling_mode_max_tokens", Pooling::max},
                                                       {"pooling_mode_lasttoken", Pooling::last}};
  if (!config.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(config));
  std::vector<std::string> on;
  for (const auto& [key, value] : config.items())
    if (key.starts_with("pooling_mode_") && value.is_boolean() && value.get<bool>())
      on.push_back(key);
  if (on.size() != 1 || !known.contains(on[0]))
    fail(ErrorKind::file, where, "{}; expected one of mean, cls, max and lasttoken",
         on.empty() ? "no pooling mode is on" : fmt::format("{}", fmt::join(on, " and ")));
  return known.at(on[0]);
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string())
    fail(ErrorKind::file, where, "a module without \"{}\"; expected a list of {{type, path}}", key);
  return object[key].get<std::string>();
}

/// true or false at `key`.
bool flag_at(const Json& object, const char* key, bool otherwise, const std::string& where) {
  const Json value = object.value(key, Json(otherwise));
  if (!value.is_boolean())
    fail(ErrorKind::file, where, "{} = {}; expected true or false", key,
         value.dump().substr(0, 40));
  return value.get<bool>();
}

Json object_in(const fs::path& file) {
  Json value = spec::read_json_file(file);
  if (!value.is_object())
    fail(ErrorKind::file, file.string(), "found {}; expected an object", spec::kind_of(value));
  return value;
}

/// The file of a transformer's module, which older folders name after the kind of model; "" where
/// there is none.
fs::path transformer_file(const fs::path& folder) {
  const fs::path usual = folder / "sentence_bert_config.json";
  if (fs::is_regular_file(usual)) return usual;
  std::error_code none;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (const std::string name = entry.path().filename();
        name.starts_with("sentence_") && name.ends_with("_config.json") && entry.is_regular_file())
      found.push_back(entry.path());
  return found.empty() ? fs::path() : *std::min_element(found.begin(), found.end());
}

/// The length and case that the module of the transformer states.
void read_transformer(const fs::path& folder, SentenceModules& options) {
  const fs::path file = transformer_file(folder);
  if (file.empty()) return;
  const Json config = object_in(file);
  if (flag_at(config, "do_lower_case", false, file.string()))
    fail(ErrorKind::file, file.string(),
         "do_lower_case = true is not supported; let the tokenizer's normalizer lower the case");
  const Json length = config.value("max_seq_length", Json(nullptr));
  if (length.is_null()) return;
  if (!length.is_number_integer() || length.get<int64_t>() < 1)
    fail(ErrorKind::file, file.string(), "max_seq_length = {}; expected a positive integer",
         length.dump().substr(0, 40));
  options.max_tokens = length.get<int64_t>();
}

/// The prompts that the folder names, and which of them is the usual one.
void read_prompts(const fs::path& file, SentenceModules& options) {
  if (!fs::is_regular_file(file)) return;
  const std::string where = file.string();
  const Json config = object_in(file);
  const Json prompts = config.value("prompts", Json(nullptr));
  if (!prompts.is_null() && !prompts.is_object())
    fail(ErrorKind::file, where, "prompts is {}; expected an object", spec::kind_of(prompts));
  for (const auto& [name, prompt] : prompts.items()) {
    if (!prompt.is_string())
      fail(ErrorKind::file, where, "prompt {} is {}; expected a string",
           format::in_quotes(name.substr(0, 100)), spec::kind_of(prompt));
    options.prompts[name] = prompt.get<std::string>();
  }
  const Json usual = config.value("default_prompt_name", Json(nullptr));
  if (usual.is_null()) return;
  if (!usual.is_string() || !options.prompts.contains(usual.get<std::string>()))
    fail(ErrorKind::file, where, "default_prompt_name = {}; expected the name of a prompt",
         usual.dump().substr(0, 100));
  options.prompt = options.prompts.at(usual.get<std::string>());
}

/// Throws unless the modules are a transformer, its pooling and, if any, the length of 1.
void check_order(const std::vector<std::string>& kinds, const std::string& where) {
  const std::vector<std::string> whole = {"Transformer", "Pooling", "Normalize"};
  if (kinds.size() >= 2 && kinds.size() <= 3 &&
      std::equal(kinds.begin(), kinds.end(), whole.begin()))
    return;
  fail(ErrorKind::file, where, "found {}; expected Transformer, Pooling and, if any, Normalize",
       kinds.empty() ? "no module" : fmt::format("{}", fmt::join(kinds, ", ")));
}

/// What a folder's modules say.
void read_modules(const fs::path& model, SentenceModules& options) {
  const fs::path file = model / "modules.json";
  options.said = true;
  const std::string where = file.string();
  const Json modules = spec::read_json_file(file);
  if (!modules.is_array())
    fail(ErrorKind::file, where, "found {}; expected a list of modules", spec::kind_of(modules));
  options.normalize = false;
  std::vector<std::string> kinds;
  for (const Json& module : modules) {
    const std::string type = text_at(module, "type", where);
    const std::string kind = type.substr(type.rfind('.') + 1);
    const fs::path folder = inside(model, text_at(module, "path", where), where);
    if (kind == "Transformer") {
      read_transformer(folder, options);
    } else if (kind == "Pooling") {
      const fs::path config = folder / "config.json";
      const Json says = spec::read_json_file(config);
      options.pooling = pooling_of(says, config.string());
      options.include_prompt = flag_at(says, "include_prompt", true, config.string());
    } else if (kind == "Normalize") {
      options.normalize = true;
    } else {
      fail(ErrorKind::file, where,
           "module \"{}\" is not supported; known: Transformer, Pooling, "
           "Normalize",
           type.substr(0, 100));
    }
    kinds.push_back(kind);
  }
  check_order(kinds, where);
  read_prompts(model / "config_sentence_transformers.json", options);
}

/// llama.cpp's numbers of poolings; "none" leaves it to who asks, and rank gives no vectors.
constexpr int64_t kNone = 0, kRank = 4;
constexpr std::pair<int64_t, Pooling> kGgufPoolings[] = {
    {1, Pooling::mean}, {2, Pooling::cls}, {3, Pooling::last}};

void read_gguf(const fs::path& path, SentenceModules& options) {
  const format::GgufFile file = format::open_gguf(path);
  const std::string key =
      std::string(file.metadata.get_string("general.architecture")) + ".pooling_type";
  if (file.metadata.find(key) == nullptr) return;
  const int64_t number = file.metadata.get_i64(key);
  if (number == kNone || number == kRank) return;
  for (const auto& [known, pooling] : kGgufPoolings)
    if (known == number) {
      options.pooling = pooling;
      options.said = true;
      return;
    }
  fail(ErrorKind::file, path.string(),
       "{} = {}; expected 0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)", key, number);
}

bool starts_as_gguf(const fs::path& path) {
  const auto file = MappedFile::open(path);
  return format::text_of(file->bytes()).starts_with("GGUF");
}

}  // namespace

const char* name_of(Pooling pooling) {
  for (const auto& [value, name] : kPoolings)
    if (value == pooling) return name;
  return "?";
}

Pooling pooling_named(std::string_view name) {
  for (const auto& [value, known] : kPoolings)
    if (known == name) return value;
  fail(ErrorKind::usage, "embed", "pooling \"{}\"; expected mean, cls, max or last", name);
}

SentenceModules sentence_modules_of(const fs::path& model) {
  SentenceModules modules;
  if (fs::is_regular_file(model / "modules.json")) read_modules(model, modules);
  if (fs::is_regular_file(model) && starts_as_gguf(model)) read_gguf(model, modules);
  return modules;
}

std::optional<int64_t> gguf_pooling(Pooling pooling) {
  for (const auto& [number, known] : kGgufPoolings)
    if (known == pooling) return number;
  return std::nullopt;
}

}  // namespace tessera::convert
