#include "tessera/infer/embed.h"

#include <algorithm>
#include <map>

#include "tessera/base/error.h"

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
                                                       {"pooling_mode_max_tokens", Pooling::max}};
  std::vector<std::string> on;
  for (const auto& [key, value] : config.items())
    if (key.starts_with("pooling_mode_") && value.is_boolean() && value.get<bool>())
      on.push_back(key);
  if (on.size() != 1 || !known.contains(on[0]))
    fail(ErrorKind::file, where, "{}; expected one of mean, cls and max",
         on.empty() ? "no pooling mode is on" : fmt::format("{}", fmt::join(on, " and ")));
  return known.at(on[0]);
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string())
    fail(ErrorKind::file, where, "a module without \"{}\"; expected a list of {{type, path}}", key);
  return object[key].get<std::string>();
}

/// The length and case that the module of the transformer states.
void read_transformer(const fs::path& file, EmbedOptions& options) {
  if (!fs::is_regular_file(file)) return;
  const Json config = spec::read_json_file(file);
  if (!config.is_object())
    fail(ErrorKind::file, file.string(), "found {}; expected an object", spec::kind_of(config));
  if (config.value("do_lower_case", Json(false)) == Json(true))
    fail(ErrorKind::file, file.string(),
         "do_lower_case = true is not supported; let the tokenizer's normalizer lower the case");
  const Json length = config.value("max_seq_length", Json(nullptr));
  if (length.is_null()) return;
  if (!length.is_number_integer() || length.get<int64_t>() < 1)
    fail(ErrorKind::file, file.string(), "max_seq_length = {}; expected a positive integer",
         length.dump().substr(0, 40));
  options.max_tokens = length.get<int64_t>();
}

/// Ids of a text, cut so that what stands around it remains.
std::vector<int64_t> ids_of(const text::Tokenizer& tokenizer,
                            const std::string& text,
                            int64_t limit,
                            Embeddings& out) {
  auto inner = tokenizer.encode(text, {.add_special = false});
  const auto around = static_cast<int64_t>(tokenizer.surround({}).size());
  if (limit > 0 && static_cast<int64_t>(inner.size()) + around > limit) {
    if (limit <= around)
      fail(ErrorKind::usage, "embed", "{} tokens leave no room for a text; expected more than {}",
           limit, around);
    inner.resize(static_cast<size_t>(limit - around));
    ++out.cut;
  }
  const auto whole = tokenizer.surround(inner);
  if (whole.empty()) fail(ErrorKind::input, "embed", "text {} has no token", out.tokens.size() + 1);
  out.tokens.push_back(static_cast<int64_t>(whole.size()));
  return {whole.begin(), whole.end()};
}

Tensor pooled(const Tensor& x_TD, Pooling pooling) {
  switch (pooling) {
    case Pooling::mean:
      return x_TD.mean(0);
    case Pooling::cls:
      return x_TD.select(0, 0);
    case Pooling::max:
      return x_TD.amax(0);
  }
  fail(ErrorKind::internal, "embed", "unknown pooling {}", static_cast<int>(pooling));
}

}  // namespace

const char* name_of(Pooling pooling) {
  return pooling == Pooling::mean ? "mean" : pooling == Pooling::cls ? "cls" : "max";
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
  for (const Json& module : modules) {
    const std::string type = text_at(module, "type", where);
    const std::string kind = type.substr(type.rfind('.') + 1);
    const fs::path folder = inside(model, text_at(module, "path", where), where);
    if (kind == "Transformer") {
      read_transformer(folder / "sentence_bert_config.json", options);
    } else if (kind == "Pooling") {
      const fs::path config = folder / "config.json";
      options.pooling = pooling_of(spec::read_json_file(config), config.string());
    } else if (kind == "Normalize") {
      options.normalize = true;
    } else {
      fail(ErrorKind::file, where,
           "module \"{}\" is not supported; known: Transformer, Pooling, "
           "Normalize",
           type.substr(0, 100));
    }
  }
  return options;
}

Embeddings embed(const LoadedModel& loaded,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "embed",
         "this model has no tokenizer; expected tokenizer.json or "
         "vocab.txt in its folder");
  const model::ModelSpec& spec = loaded.model.spec();
  if (spec.encoder)
    fail(ErrorKind::usage, "embed", "this model is an {}; expected an encoder or a decoder",
         model::name_of(spec.arch));
  const int64_t longest = spec.longest_sequence();
  int64_t limit = options.max_tokens;
  if (longest > 0) limit = limit == 0 ? longest : std::min(limit, longest);

  const at::NoGradGuard no_gradients;
  Embeddings out;
  std::vector<Tensor> vectors;
  std::vector<std::vector<int64_t>> rows;
  const auto compute = [&] {
    if (rows.empty()) return;
    const nn::Batch batch = nn::Batch::of(rows);
    model::ForwardOptions call;
    call.cancel = options.cancel;
    const Tensor hidden_ND = loaded.model.hidden(batch, call);
    for (const nn::Segment& s : batch.segments) {
      // in double: the order of a sum must not show
      Tensor v_D = pooled(hidden_ND.narrow(0, s.begin, s.length).to(at::kDouble), options.pooling);
      if (options.normalize) v_D = v_D / v_D.norm().clamp_min(kLeastLength);
      vectors.push_back(v_D.to(at::kFloat));
    }
    rows.clear();
  };
  int64_t tokens = 0;
  for (const std::string& text : texts) {
    rows.push_back(ids_of(*loaded.tokenizer, text, limit, out));
    tokens += out.tokens.back();
    if (tokens < kTokensPerCall) continue;
    compute();
    tokens = 0;
  }
  compute();
  out.vectors_RD = vectors.empty() ? at::zeros({0, spec.width_out()}) : at::stack(vectors);
  return out;
}

}  // namespace tessera::infer
