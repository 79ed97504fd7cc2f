#include "tessera/convert/text_settings.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/generation_config.h"
#include "tessera/spec/json.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char *kTemplate = "chat_template.jinja", *kGeneration = "generation_config.json";
constexpr size_t kMaxTemplate = size_t{16} << 20;

std::string template_in(const fs::path& folder) {
  const fs::path file = folder / kTemplate;
  return fs::is_regular_file(file) ? read_text_file(file, kMaxTemplate) : std::string();
}

/// Adds ids to "eos_token_id", which is a number or a list.
void add_ends(const std::vector<int64_t>& ends, Json& config) {
  Json all = config.value("eos_token_id", Json());
  if (!all.is_array()) all = all.is_null() ? Json::array() : Json::array({all});
  for (const int64_t end : ends)
    if (std::find(all.begin(), all.end(), Json(end)) == all.end()) all.push_back(end);
  config["eos_token_id"] = all.size() == 1 ? all[0] : all;
}

}  // namespace

TextSettings settings_of_adapter(const fs::path& adapter, int64_t vocab) {
  const fs::path folder = checkpoint_place(adapter);
  TextSettings out;
  if (!fs::is_directory(folder)) return out;
  out.chat_template = template_in(folder);
  if (fs::is_regular_file(folder / kGeneration))
    out.ends = read_generation_config(folder, vocab, {}).ends;
  out.sentences = sentence_modules_of(folder);
  return out;
}

text::Tokenizer with_template_in(const fs::path& folder, const text::Tokenizer& tokenizer) {
  const std::string source = template_in(folder);
  return source.empty() || source == tokenizer.chat_template()
             ? tokenizer
             : text::with_chat_template(tokenizer, source);
}

SentenceModules sentence_modules_of(const fs::path& model,
                                    const std::vector<std::string>& adapters) {
  SentenceModules out = sentence_modules_of(model);
  for (const std::string& adapter : adapters) {
    SentenceModules own = sentence_modules_of(fs::path(adapter));
    if (!own.stated) continue;
    if (own.max_tokens == 0) own.max_tokens = out.max_tokens;
    own.lower_case = own.lower_case || out.lower_case;
    out = std::move(own);
  }
  return out;
}

void write_settings_of_adapter(const fs::path& adapter, int64_t vocab, const fs::path& folder) {
  const TextSettings settings = settings_of_adapter(adapter, vocab);
  if (!settings.chat_template.empty())
    write_file_atomically(folder / kTemplate, settings.chat_template);
  if (!settings.ends.empty()) {
    const fs::path file = folder / kGeneration;
    Json config = fs::is_regular_file(file) ? spec::read_json_file(file) : Json::object();
    add_ends(settings.ends, config);
    write_file_atomically(file, config.dump(2) + "\n");
  }
  if (settings.sentences.stated) copy_sentence_modules(checkpoint_place(adapter), folder);
}

void set_settings_of_adapter(const fs::path& adapter, int64_t vocab, GgufModel& model) {
  using format::GgufValue;
  const TextSettings settings = settings_of_adapter(adapter, vocab);
  if (!settings.chat_template.empty())
    model.set("tokenizer.chat_template", GgufValue::string(settings.chat_template));
  // in addition to eos_token_id files name one that ends a turn
  const int64_t eos = model.integer_or("tokenizer.ggml.eos_token_id", -1);
  for (const int64_t end : settings.ends)
    if (end != eos)
      model.set("tokenizer.ggml.eot_token_id", GgufValue::number(static_cast<uint32_t>(end)));
  if (!settings.sentences.stated) return;
  const std::vector<Pooling>& poolings = settings.sentences.poolings;
  const auto pooling =
      poolings.size() == 1 ? gguf_pooling(poolings.front()) : std::optional<int64_t>();
  if (!pooling)
    fail(ErrorKind::spec, "gguf",
         "the adapter pools by {}; GGUF files support mean, cls or last: write another format "
         "(--to)",
         names_of(poolings));
  model.set(model.architecture + ".pooling_type",
            GgufValue::number(static_cast<uint32_t>(*pooling)));
}

}  // namespace tessera::convert
