#include "tessera/infer/embed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/format/file_source.h"
#include "tessera/infer/sequence.h"

namespace tessera::infer {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr int64_t kTokensPerCall = 4096;
constexpr double kLeastLength = 1e-12;  // a vector of zeros stays one

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
void read_transformer(const fs::path& folder, EmbedOptions& options) {
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
void read_prompts(const fs::path& file, EmbedOptions& options) {
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

/// The first tokens of a text, which are those of the prompt and what stands before it.
int64_t tokens_of_prompt(const text::Tokenizer& tokenizer, const EmbedOptions& options) {
  if (options.prompt.empty() || options.include_prompt) return 0;
  const auto ids = tokenizer.encode(options.prompt, {.parse_special = options.parse_special});
  const bool ends = !ids.empty() && tokenizer.is_special(ids.back());
  return static_cast<int64_t>(ids.size()) - (ends ? 1 : 0);
}

/// Ids of a text, cut so that what stands around it, `around` tokens, remains; none where even that
/// leaves no room.
struct TextIds {
  std::vector<int64_t> ids;
  bool cut = false;
};
TextIds ids_of(const text::Tokenizer& tokenizer,
               const std::string& text,
               bool parse_special,
               int64_t limit,
               int64_t around) {
  auto inner = tokenizer.encode(text, {.add_special = false, .parse_special = parse_special});
  const bool cut = limit > 0 && static_cast<int64_t>(inner.size()) + around > limit;
  if (cut) inner.resize(static_cast<size_t>(std::max<int64_t>(0, limit - around)));
  const auto whole = tokenizer.surround(inner);
  return {{whole.begin(), whole.end()}, cut};
}

/// The vector of rows [count, d], in double: the order of a sum must not show.
void pool(const float* rows, int64_t count, int64_t d, const EmbedOptions& options, float* vector) {
  std::vector<double> v(static_cast<size_t>(d), 0);
  const auto read = [&](int64_t row, const auto& join) {
    for (int64_t c = 0; c < d; ++c) join(v[static_cast<size_t>(c)], rows[row * d + c]);
  };
  const auto copy = [](double& to, float x) { to = x; };
  switch (options.pooling) {
    case Pooling::mean:
      for (int64_t t = 0; t < count; ++t) read(t, [](double& to, float x) { to += x; });
      for (double& x : v) x /= static_cast<double>(count);
      break;
    case Pooling::cls:
      read(0, copy);
      break;
    case Pooling::max:
      read(0, copy);
      for (int64_t t = 1; t < count; ++t)
        read(t, [](double& to, float x) { to = x > to || std::isnan(x) ? x : to; });
      break;
    case Pooling::last:
      read(count - 1, copy);
      break;
  }
  double length = 1;
  if (options.normalize)
    length =
        std::max(kLeastLength, std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)));
  for (int64_t c = 0; c < d; ++c)
    vector[c] = static_cast<float>(v[static_cast<size_t>(c)] / length);
}

}  // namespace

namespace {
constexpr std::array kPoolings = {std::pair{Pooling::mean, "mean"}, std::pair{Pooling::cls, "cls"},
                                  std::pair{Pooling::max, "max"}, std::pair{Pooling::last, "last"}};
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

EmbedOptions embed_options_of(const fs::path& model) {
  EmbedOptions options;
  const fs::path file = model / "modules.json";
  if (!fs::is_regular_file(file)) return options;
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
  return options;
}

EmbedTokens embed_tokens(const LoadedModel& loaded,
                         const std::vector<std::string>& texts,
                         const EmbedOptions& options) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "embed",
         "this model has no tokenizer; expected tokenizer.json or "
         "vocab.txt in its folder");
  const int64_t longest = loaded.model.spec().longest_sequence();
  int64_t limit = options.max_tokens;
  if (longest > 0) limit = limit == 0 ? longest : std::min(limit, longest);
  EmbedTokens out;
  if (options.pooling != Pooling::cls) out.behind = tokens_of_prompt(*loaded.tokenizer, options);
  const auto around = static_cast<int64_t>(loaded.tokenizer->surround({}).size());
  std::vector<TextIds> read(texts.size());
  parallel_in_turn(std::ssize(texts), 16, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      read[i] = ids_of(*loaded.tokenizer, options.prompt + texts[i], options.parse_special, limit,
                       around);
  });
  for (TextIds& text : read) {
    if (text.cut && limit <= around)
      fail(ErrorKind::usage, "embed", "{} tokens leave no room for a text; expected more than {}",
           limit, around);
    if (text.ids.empty())
      fail(ErrorKind::input, "embed", "text {} has no token", out.rows.size() + 1);
    out.cut += text.cut ? 1 : 0;
    out.rows.push_back(std::move(text.ids));
    if (size_of(out.rows.back()) <= out.behind)
      fail(ErrorKind::input, "embed",
           "text {} has {} tokens, of which the first {} are the prompt's and do not count "
           "(include_prompt); expected some behind them",
           out.rows.size(), out.rows.back().size(), out.behind);
  }
  return out;
}

Tensor embed_rows(const LoadedModel& loaded,
                  const std::vector<std::vector<int64_t>>& rows,
                  const EmbedOptions& options,
                  int64_t behind) {
  const model::ModelSpec& spec = loaded.model.spec();
  if (spec.encoder)
    fail(ErrorKind::usage, "embed", "this model is an {}; expected an encoder or a decoder",
         model::name_of(spec.arch));
  const at::NoGradGuard no_gradients;
  const int64_t d = spec.width_out();
  const Tensor vectors_RD = at::empty({std::ssize(rows), d}, at::kFloat);
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    for (int64_t tokens = 0; end < rows.size() && tokens < kTokensPerCall; ++end)
      tokens += size_of(rows[end]);
    const nn::Batch batch = nn::Batch::of({rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                           rows.begin() + static_cast<std::ptrdiff_t>(end)});
    model::ForwardOptions call;
    call.cancel = options.cancel;
    const Tensor hidden_ND = loaded.model.hidden(batch, call).to(at::kCPU, at::kFloat).contiguous();
    const auto* hidden = hidden_ND.const_data_ptr<float>();
    float* vectors = vectors_RD.data_ptr<float>() + static_cast<int64_t>(begin) * d;
    parallel_for(static_cast<int64_t>(end - begin), 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const nn::Segment& s = batch.segments[static_cast<size_t>(i)];
        pool(hidden + (s.begin + behind) * d, s.length - behind, d, options, vectors + i * d);
      }
    });
    begin = end;
  }
  return vectors_RD;
}

Embeddings embed(const LoadedModel& loaded,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options) {
  const EmbedTokens read = embed_tokens(loaded, texts, options);
  Embeddings out{.vectors_RD = embed_rows(loaded, read.rows, options, read.behind),
                 .tokens = {},
                 .cut = read.cut};
  for (const auto& row : read.rows) out.tokens.push_back(size_of(row));
  return out;
}

}  // namespace tessera::infer
