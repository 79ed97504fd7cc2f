#include "tessera/convert/sentence_modules.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/sentence_layers.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"
#include "tessera/format/is_gguf.h"
#include "tessera/spec/json.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr const char *kModules = "modules.json", *kConfig = "config_sentence_transformers.json";

struct PoolingName {
  Pooling pooling;
  const char* name;    // of ours
  const char* mode;    // of "pooling_mode", since sentence-transformers 5.4
  const char* legacy;  // the key that switches it on before that
};
/// In the order in which earlier versions join the vectors of several.
constexpr PoolingName kPoolings[] = {
    {Pooling::cls, "cls", "cls", "pooling_mode_cls_token"},
    {Pooling::max, "max", "max", "pooling_mode_max_tokens"},
    {Pooling::mean, "mean", "mean", "pooling_mode_mean_tokens"},
    {Pooling::mean_sqrt_len, "mean_sqrt_len", "mean_sqrt_len_tokens",
     "pooling_mode_mean_sqrt_len_tokens"},
    {Pooling::weighted_mean, "weightedmean", "weightedmean", "pooling_mode_weightedmean_tokens"},
    {Pooling::last, "last", "lasttoken", "pooling_mode_lasttoken"}};

/// A file that a module names, within the folder.
fs::path inside(const fs::path& folder, const std::string& name, const std::string& where) {
  const fs::path path(name);
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end())
    fail(ErrorKind::file, where, "path \"{}\"; expected one within the folder",
         name.substr(0, 100));
  return folder / path;
}

/// true or false at `key`.
bool flag_at(const Json& object, const char* key, bool otherwise, const std::string& where) {
  const Json value = object.value(key, Json(otherwise));
  if (!value.is_boolean())
    fail(ErrorKind::file, where, "{} = {}; expected true or false", key,
         value.dump().substr(0, 40));
  return value.get<bool>();
}

std::vector<Pooling> poolings_of(const Json& config, const std::string& where) {
  if (!config.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(config));
  std::vector<Pooling> out;
  if (const Json mode = config.value("pooling_mode", Json()); !mode.is_null()) {
    const auto add = [&](const Json& name) {
      for (const PoolingName& known : kPoolings)
        if (name == Json(known.mode)) return out.push_back(known.pooling);
      fail(ErrorKind::file, where,
           "pooling_mode {}; expected cls, max, mean, mean_sqrt_len_tokens, weightedmean or "
           "lasttoken",
           name.dump().substr(0, 60));
    };
    if (!mode.is_array()) add(mode);
    if (mode.is_array())
      for (const Json& name : mode) add(name);
  } else {
    bool any_key = false;
    for (const PoolingName& known : kPoolings) {
      any_key = any_key || config.contains(known.legacy);
      if (flag_at(config, known.legacy, false, where)) out.push_back(known.pooling);
    }
    for (const auto& [key, value] : config.items())
      if (key.starts_with("pooling_mode_") && value == Json(true) &&
          std::none_of(std::begin(kPoolings), std::end(kPoolings),
                       [&](const PoolingName& known) { return key == known.legacy; }))
        fail(ErrorKind::file, where,
             "{} is not supported; expected one of cls, max, mean, "
             "mean_sqrt_len, weightedmean and last",
             key.substr(0, 100));
    // with all of them off it is the mean
    if (out.empty() && any_key) out.push_back(Pooling::mean);
  }
  if (out.empty())
    fail(ErrorKind::file, where, "no pooling mode; expected \"pooling_mode\", such as \"mean\"");
  return out;
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string())
    fail(ErrorKind::file, where, "a module without \"{}\"; expected a list of {{type, path}}", key);
  return object[key].get<std::string>();
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

/// The longest text that the tokenizer is made for; 0 = any, which files write as a very large
/// number.
int64_t tokenizer_length(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(file)) return 0;
  constexpr int64_t kAny = 1'000'000'000;
  const Json length = object_in(file).value("model_max_length", Json());
  return length.is_number_integer() && length > 0 && length < kAny ? length.get<int64_t>() : 0;
}

/// How the module of the transformer, since 5.4, calls the model.
void check_call(const Json& config, const std::string& where) {
  const auto check = [&](const Json& value, const char* name, const char* expected) {
    if (!value.is_null() && value != Json(expected))
      fail(ErrorKind::file, where, "{} = {} is not supported; expected \"{}\"", name,
           value.dump().substr(0, 60), expected);
  };
  check(config.value("transformer_task", Json()), "transformer_task", "feature-extraction");
  check(config.value("module_output_name", Json()), "module_output_name", "token_embeddings");
  const Json modalities = config.value("modality_config", Json());
  const Json text = modalities.is_object() ? modalities.value("text", Json()) : Json();
  if (!modalities.is_null() && !text.is_object())
    fail(ErrorKind::file, where, "modality_config says nothing of \"text\"; expected a text model");
  if (!text.is_object()) return;
  check(text.value("method", Json()), "modality_config.text.method", "forward");
  check(text.value("method_output_name", Json()), "modality_config.text.method_output_name",
        "last_hidden_state");
}

/// The length and case that the module of the transformer states.
void read_transformer(const fs::path& folder, SentenceModules& options) {
  options.max_tokens = tokenizer_length(folder);
  const fs::path file = transformer_file(folder);
  if (file.empty()) return;
  const Json config = object_in(file);
  options.lower_case = flag_at(config, "do_lower_case", false, file.string());
  check_call(config, file.string());
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
  const Json dimensions = config.value("truncate_dim", Json(nullptr));
  if (!dimensions.is_null()) {
    if (!dimensions.is_number_integer() || dimensions.get<int64_t>() < 1)
      fail(ErrorKind::file, where, "truncate_dim = {}; expected a positive integer",
           dimensions.dump().substr(0, 40));
    options.dimensions = dimensions.get<int64_t>();
  }
  const Json usual = config.value("default_prompt_name", Json(nullptr));
  if (usual.is_null()) return;
  if (!usual.is_string() || !options.prompts.contains(usual.get<std::string>()))
    fail(ErrorKind::file, where, "default_prompt_name = {}; expected the name of a prompt",
         usual.dump().substr(0, 100));
  options.prompt = options.prompts.at(usual.get<std::string>());
}

/// Throws unless the modules are a transformer, its pooling and modules of vectors.
void check_order(const std::vector<std::string>& kinds, const std::string& where) {
  const auto is_first = [](const std::string& kind) {
    return kind == "Transformer" || kind == "Pooling";
  };
  if (kinds.size() >= 2 && kinds[0] == "Transformer" && kinds[1] == "Pooling" &&
      std::none_of(kinds.begin() + 2, kinds.end(), is_first))
    return;
  fail(ErrorKind::file, where,
       "found {}; expected Transformer, Pooling and, if any, Dense, LayerNorm, Dropout and "
       "Normalize",
       kinds.empty() ? "no module" : fmt::format("{}", fmt::join(kinds, ", ")));
}

/// Reads one module.
void read_module(const std::string& kind,
                 const std::string& type,
                 const fs::path& folder,
                 const std::string& where,
                 SentenceModules& options) {
  if (kind == "Transformer") {
    read_transformer(folder, options);
  } else if (kind == "Pooling") {
    const fs::path config = folder / "config.json";
    const Json says = spec::read_json_file(config);
    options.poolings = poolings_of(says, config.string());
    options.include_prompt = flag_at(says, "include_prompt", true, config.string());
  } else if (kind == "Dense") {
    options.layers.push_back(read_dense(folder));
  } else if (kind == "LayerNorm") {
    options.layers.push_back(read_layer_norm(folder));
  } else if (kind == "Normalize") {
    options.layers.push_back(read_normalize(folder));
  } else if (kind != "Dropout") {  // which does nothing outside of training
    fail(ErrorKind::file, where,
         "module \"{}\" is not supported; expected Transformer, Pooling, Dense, LayerNorm, Dropout "
         "or Normalize",
         type.substr(0, 100));
  }
}

struct ModuleEntry {
  std::string type, kind;  // "sentence_transformers.models.Pooling", "Pooling"
  fs::path folder;
};

/// The modules that a folder lists.
std::vector<ModuleEntry> listed_modules(const fs::path& model) {
  const fs::path file = model / kModules;
  const std::string where = file.string();
  const Json modules = spec::read_json_file(file);
  if (!modules.is_array())
    fail(ErrorKind::file, where, "found {}; expected a list of modules", spec::kind_of(modules));
  std::vector<ModuleEntry> out;
  for (const Json& module : modules) {
    const std::string type = text_at(module, "type", where);
    out.push_back({type, type.substr(type.rfind('.') + 1),
                   inside(model, text_at(module, "path", where), where)});
  }
  return out;
}

/// What a folder's modules say.
void read_modules(const fs::path& model, SentenceModules& options) {
  options.stated = true;
  const std::string where = (model / kModules).string();
  std::vector<std::string> kinds;
  for (const ModuleEntry& module : listed_modules(model)) {
    kinds.push_back(module.kind);
    read_module(module.kind, module.type, module.folder, where, options);
  }
  check_order(kinds, where);
  // the last module is what --normalize and --no-normalize are about
  options.normalize =
      !options.layers.empty() && options.layers.back().kind == SentenceLayer::Kind::normalize;
  if (options.normalize) options.layers.pop_back();
  read_prompts(model / kConfig, options);
}

/// llama.cpp's numbers of poolings; "none" leaves it to who asks, and rank gives no vectors.
constexpr int64_t kNone = 0, kRank = 4;
constexpr std::pair<int64_t, Pooling> kGgufPoolings[] = {
    {1, Pooling::mean}, {2, Pooling::cls}, {3, Pooling::last}};

void read_gguf(const format::GgufFile& file, const std::string& where, SentenceModules& options) {
  const std::string key =
      std::string(file.metadata.get_string("general.architecture")) + ".pooling_type";
  if (file.metadata.find(key) == nullptr) return;
  const int64_t number = file.metadata.get_i64(key);
  if (number == kNone || number == kRank) return;
  for (const auto& [known, pooling] : kGgufPoolings)
    if (known == number) {
      options.poolings = {pooling};
      options.stated = true;
      return;
    }
  fail(ErrorKind::file, where,
       "{} = {}; expected 0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)", key, number);
}

}  // namespace

const char* name_of(Pooling pooling) {
  for (const PoolingName& known : kPoolings)
    if (known.pooling == pooling) return known.name;
  return "?";
}

std::string names_of(const std::vector<Pooling>& poolings) {
  std::string out;
  for (const Pooling pooling : poolings)
    out += (out.empty() ? "" : "+") + std::string(name_of(pooling));
  return out;
}

Pooling pooling_named(std::string_view name) {
  if (name == "first") name = "cls";  // as pooler parts call it
  for (const PoolingName& known : kPoolings)
    if (known.name == name) return known.pooling;
  fail(ErrorKind::usage, "embed",
       "pooling \"{}\"; expected mean, cls, max, last, mean_sqrt_len or weightedmean", name);
}

SentenceModules sentence_modules_of(const fs::path& given) {
  const fs::path model = checkpoint_place(given);
  SentenceModules modules;
  if (fs::is_regular_file(model / kModules)) read_modules(model, modules);
  if (fs::is_regular_file(model) && format::is_gguf(model))
    read_gguf(format::open_gguf(model), model.string(), modules);
  return modules;
}

SentenceModules sentence_modules_of(const format::GgufFile& file, const std::string& where) {
  SentenceModules modules;
  read_gguf(file, where, modules);
  return modules;
}

std::vector<Pooling> poolings_of_folder(const fs::path& path) {
  const fs::path model = checkpoint_place(path);
  fs::path config = model / "1_Pooling" / "config.json";
  if (fs::is_regular_file(model / kModules))
    for (const ModuleEntry& module : listed_modules(model))
      if (module.kind == "Pooling") config = module.folder / "config.json";
  if (!fs::is_regular_file(config)) return {};
  return poolings_of(spec::read_json_file(config), config.string());
}

namespace {

void copy_whole(const fs::path& from, const fs::path& to) {
  write_file_atomically(to, read_text_file(from));
}

/// The files of a module, those in folders of it too.
void copy_module(const fs::path& from, const fs::path& to) {
  if (!fs::is_directory(from)) return;  // has none, as Normalize
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (entry.is_directory() && !entry.is_symlink()) copy_module(entry.path(), to / name);
    if (entry.is_regular_file()) copy_whole(entry.path(), to / name);
  }
}

}  // namespace

void copy_sentence_modules(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::is_regular_file(from / kModules) || fs::equivalent(from, to, error)) return;
  Json list = spec::read_json_file(from / kModules);
  const std::vector<ModuleEntry> modules = listed_modules(from);
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleEntry& module = modules[i];
    const std::string path = list[i]["path"].get<std::string>();
    if (module.kind == "Transformer") {
      list[i]["path"] = "";
      if (const fs::path config = transformer_file(module.folder); !config.empty())
        copy_whole(config, to / config.filename());
    } else if (const fs::path normal = fs::path(path).lexically_normal();
               !normal.empty() && normal != ".") {
      copy_module(module.folder, to / normal);
    }
  }
  if (fs::is_regular_file(from / kConfig)) copy_whole(from / kConfig, to / kConfig);
  write_file_atomically(to / kModules, list.dump(2) + "\n");
}

void copy_sentence_settings(const fs::path& from, const fs::path& to) {
  if (!fs::is_regular_file(from / kModules)) return;
  for (const ModuleEntry& module : listed_modules(from))
    if (module.kind == "Transformer")
      if (const fs::path config = transformer_file(module.folder); !config.empty())
        copy_whole(config, to / config.filename());
  if (fs::is_regular_file(from / kConfig)) copy_whole(from / kConfig, to / kConfig);
}

void write_sentence_modules(const SentenceModules& modules, int64_t width, const fs::path& to) {
  const auto entry = [](int number, const char* name, const char* path) {
    return Json{{"idx", number},
                {"name", std::to_string(number)},
                {"path", path},
                {"type", std::string("sentence_transformers.models.") + name}};
  };
  Json list = {entry(0, "Transformer", ""), entry(1, "Pooling", "1_Pooling")};
  if (modules.normalize) list.push_back(entry(2, "Normalize", "2_Normalize"));
  // read by all versions
  Json pooling = {{"word_embedding_dimension", width}};
  for (const PoolingName& known : kPoolings)
    pooling[known.legacy] = std::find(modules.poolings.begin(), modules.poolings.end(),
                                      known.pooling) != modules.poolings.end();
  if (!modules.include_prompt) pooling["include_prompt"] = false;
  fs::create_directories(to / "1_Pooling");
  write_file_atomically(to / "1_Pooling" / "config.json", pooling.dump(2) + "\n");
  write_file_atomically(to / kModules, list.dump(2) + "\n");
}

std::optional<int64_t> gguf_pooling(Pooling pooling) {
  for (const auto& [number, known] : kGgufPoolings)
    if (known == pooling) return number;
  return std::nullopt;
}

}  // namespace tessera::convert
