#include "tessera/convert/gguf_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/family.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/mapping.h"
#include "tessera/convert/sentence_modules.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf_types.h"
#include "tessera/format/is_gguf.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using format::GgufEntry;
using format::GgufValue;
using format::in_quotes;

template <class T>
GgufValue array_of(const Json& list) {
  std::vector<T> values;
  for (const Json& element : list) values.push_back(element.get<T>());
  return GgufValue::array(std::span<const T>(values));
}

/// Whole numbers as u32, others as f32, as llama.cpp asks for them.
GgufValue value_of(const Json& json, const std::string& key) {
  if (json.is_boolean()) return GgufValue::number(json.get<bool>());
  if (json.is_string()) return GgufValue::string(json.get<std::string>());
  if (json.is_number_float()) return GgufValue::number(json.get<float>());
  if (json.is_number_integer()) {
    const auto number = json.get<int64_t>();
    if (number < 0) return GgufValue::number(static_cast<int32_t>(number));
    if (number > std::numeric_limits<uint32_t>::max())
      return GgufValue::number(static_cast<uint64_t>(number));
    return GgufValue::number(static_cast<uint32_t>(number));
  }
  const auto all = [&](auto is) { return std::all_of(json.begin(), json.end(), is); };
  if (json.is_array() && !json.empty()) {
    if (all([](const Json& e) { return e.is_number_integer(); })) return array_of<int32_t>(json);
    if (all([](const Json& e) { return e.is_number(); })) return array_of<float>(json);
    if (all([](const Json& e) { return e.is_string(); }))
      return GgufValue::strings(json.get<std::vector<std::string>>());
    if (all([](const Json& e) { return e.is_boolean(); })) {
      const auto flags = std::make_unique<bool[]>(json.size());
      std::transform(json.begin(), json.end(), flags.get(),
                     [](const Json& e) { return e.get<bool>(); });
      return GgufValue::array(std::span<const bool>(flags.get(), json.size()));
    }
  }
  fail(ErrorKind::spec, "gguf",
       "{} is {}; expected a number, a text, a boolean, or a list of one of these", in_quotes(key),
       json.dump());
}

void add_config(const Json& config, const std::string& prefix, std::vector<GgufEntry>& entries) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_null()) continue;
    if (value.is_object())
      add_config(value, prefix + key + ".", entries);
    else
      entries.push_back({prefix + key, value_of(value, prefix + key)});
  }
}

using Attempt = std::function<void(const Family& family)>;

/// Tries the family whose GGUF files hold the checkpoint: the named one, its own, or, where that
/// has no such files, another of the same architecture.
void by_family(const Checkpoint& checkpoint,
               FamilySet& families,
               const std::string& family,
               const Attempt& attempt) {
  const std::string own = family.empty() ? checkpoint.family : family;
  if (!own.empty() && families.named(own).dialects.contains("gguf"))
    return attempt(families.named(own));
  if (!family.empty())
    fail(ErrorKind::usage, family, "has no GGUF files; expected another --family");
  for (const std::string& name : families.names()) {
    const auto& dialects = families.named(name).dialects;
    const auto found = dialects.find("gguf");
    if (found == dialects.end() || found->second.write == nullptr) continue;
    try {
      return attempt(families.named(name));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::spec && error.kind() != ErrorKind::file) throw;
      // of another architecture
    }
  }
  fail(ErrorKind::spec, own.empty() ? "gguf" : own,
       "this architecture has no GGUF export; write a Hugging Face or tessera folder");
}

/// How a folder of sentence-transformers pools; the rest is for the embedding program.
void add_sentences(const fs::path& folder, int64_t context, GgufModel& model) {
  if (!fs::is_regular_file(folder / "modules.json")) return;
  const SentenceModules said = sentence_modules_of(folder);
  const std::optional<int64_t> pooling =
      said.poolings.size() == 1 ? gguf_pooling(said.poolings[0]) : std::nullopt;
  if (!pooling)
    fail(ErrorKind::spec, "gguf", "{} has pooling {}; GGUF files support mean, cls or last",
         folder.string(), names_of(said.poolings));
  if (!said.layers.empty())
    fail(ErrorKind::spec, "gguf",
         "{} has modules after the pooling, which GGUF files do not support", folder.string());
  model.set(model.architecture + ".pooling_type",
            GgufValue::number(static_cast<uint32_t>(*pooling)));
  std::vector<std::string> flags;
  if (said.max_tokens > 0 && said.max_tokens != context)
    flags.push_back(fmt::format("--max-tokens {}", said.max_tokens));
  if (said.dimensions > 0) flags.push_back(fmt::format("--dimensions {}", said.dimensions));
  if (!said.normalize) flags.emplace_back("--no-normalize");
  if (!said.prompt.empty()) flags.push_back(fmt::format("--prompt {}", in_quotes(said.prompt)));
  if (!flags.empty())
    model.remarks.push_back(
        fmt::format("GGUF files lack settings of the folder; use tessera embed with {}",
                    fmt::join(flags, " ")));
  if (said.lower_case)
    model.remarks.emplace_back(
        "do_lower_case of the folder has no place in GGUF files, nor among the flags");
  if (!said.include_prompt)
    model.remarks.emplace_back(
        "include_prompt = false of the folder has no place in GGUF files, nor among the flags");
}

}  // namespace

const GgufValue* GgufModel::find(std::string_view key) const {
  const std::string whole =
      key.starts_with('.') ? architecture + std::string(key) : std::string(key);
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const GgufEntry& entry) { return entry.key == whole; });
  return found == entries.end() ? nullptr : &found->value;
}

int64_t GgufModel::integer_or(std::string_view key, int64_t otherwise) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return otherwise;
  // of a list, one for each layer, the largest
  if (value->type() == format::GgufType::array) {
    const std::vector<int64_t> all = value->as_integers();
    return all.empty() ? otherwise : *std::max_element(all.begin(), all.end());
  }
  try {
    return value->as_i64();
  } catch (const Error& error) {
    constexpr std::string_view kTag = "[gguf] ";
    fail(ErrorKind::file, "gguf", "metadata key {} is {}",
         format::in_quotes(key.starts_with('.') ? architecture + std::string(key)
                                                : std::string(key)),
         std::string_view(error.what()).substr(kTag.size()));
  }
}

void GgufModel::set(const std::string& key, GgufValue value) {
  for (GgufEntry& entry : entries)
    if (entry.key == key) {
      entry.value = std::move(value);
      return;
    }
  // before the tokenizer, which is long
  const auto at = std::find_if(entries.begin(), entries.end(), [](const GgufEntry& entry) {
    return entry.key.starts_with("tokenizer.");
  });
  entries.insert(at, {key, std::move(value)});
}

bool is_large_matrix(const TensorView& tensor) {
  // what is small, added, or decides between experts
  constexpr std::string_view kWhole[] = {"_norm.weight",
                                         "ffn_gate_inp.weight",
                                         "ssm_conv1d",
                                         "shortconv.conv.weight",
                                         "time_mix_first",
                                         "time_mix_w0",
                                         "time_mix_w1",
                                         "time_mix_w2",
                                         "time_mix_v0",
                                         "time_mix_v1",
                                         "time_mix_v2",
                                         "time_mix_a0",
                                         "time_mix_a1",
                                         "time_mix_a2",
                                         "time_mix_g1",
                                         "time_mix_g2",
                                         "time_mix_decay_w1",
                                         "time_mix_decay_w2",
                                         "lerp_fused",
                                         "attn_rel_b.weight",
                                         ".position_embd",
                                         ".rel_pos",
                                         ".patch_embd",
                                         "altup",
                                         "laurel",
                                         "per_layer_model_proj"};
  // an axis of one row is none, as in ggml
  int64_t rows = 1;
  for (size_t axis = 0; axis + 1 < tensor.shape.size(); ++axis) rows *= tensor.shape[axis];
  const std::string& name = tensor.name;
  return rows > 1 && name.ends_with("weight") && name != "position_embd.weight" &&
         name != "token_types.weight" &&
         std::none_of(std::begin(kWhole), std::end(kWhole),
                      [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

GgufModel read_gguf_model(const fs::path& path) {
  const format::GgufFile file = format::open_gguf(path);
  for (const format::UnsupportedTensor& tensor : file.tensors.unsupported())
    file.tensors.find(tensor.name);  // throws
  GgufModel model;
  model.architecture = file.metadata.get_string("general.architecture");
  model.entries = file.metadata.entries();
  model.tensors = file.tensors.tensors();
  return model;
}

bool has_gguf_form(const TensorView& tensor) {
  return format::ggml_type_of(tensor.dtype) != nullptr && tensor.columns == nullptr;
}

GgufModel gguf_model_of(const Checkpoint& checkpoint, const GgufModelOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  Exported out;
  by_family(checkpoint, families, options.family, [&](const Family& family) {
    out = export_checkpoint(family, "gguf", checkpoint, families, false);
  });
  GgufModel model;
  if (!out.remark.empty()) model.remarks.push_back(out.remark);
  model.architecture = out.config.at("architecture").get<std::string>();
  model.entries = {{"general.architecture", GgufValue::string(model.architecture)},
                   {"general.type", GgufValue::string("model")}};
  // "" is this folder
  const fs::path folder = fs::absolute(checkpoint.folder / ".").lexically_normal();
  const std::string name = folder.parent_path().filename().string();
  if (!name.empty()) model.entries.push_back({"general.name", GgufValue::string(name)});
  out.config.erase("architecture");  // general.architecture
  add_config(out.config, model.architecture + ".", model.entries);
  bool half = false, brain = false;
  for (TensorView& tensor : out.tensors) {
    if (!is_large_matrix(tensor)) tensor = as_float32(tensor);
    half = half || tensor.dtype == DType::f16;
    brain = brain || tensor.dtype == DType::bf16;
  }
  model.entries.push_back({"general.file_type", GgufValue::number(brain  ? uint32_t{32}
                                                                  : half ? uint32_t{1}
                                                                         : uint32_t{0})});
  model.tensors = std::move(out.tensors);
  for (const TensorView& tensor : checkpoint.tensors)
    if (model.widened.empty() && is_block_type(tensor.dtype) && !has_gguf_form(tensor))
      model.widened = tensor.name;
  std::vector<GgufEntry> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer = gguf_tokenizer_entries(options.tokenizer, checkpoint.spec.vocab);
  } else if (checkpoint.gguf != nullptr) {
    for (const GgufEntry& entry : checkpoint.gguf->metadata.entries())
      if (entry.key.starts_with("tokenizer.")) tokenizer.push_back(entry);
  } else {
    tokenizer = gguf_tokenizer_entries(checkpoint.folder, checkpoint.spec.vocab);
  }
  model.entries.insert(model.entries.end(), tokenizer.begin(), tokenizer.end());
  add_sentences(checkpoint.folder, model.integer_or(".context_length", 0), model);
  // the number of token types is not the tokenizer's
  for (const TensorView& tensor : model.tensors)
    if (tensor.name == "token_types.weight")
      model.set("tokenizer.ggml.token_type_count",
                GgufValue::number(static_cast<uint32_t>(tensor.shape.front())));
  return model;
}

std::vector<std::pair<std::string, std::vector<std::string>>> gguf_names(
    const Checkpoint& checkpoint, const GgufModelOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  std::vector<std::pair<std::string, std::vector<std::string>>> names;
  by_family(checkpoint, families, options.family, [&](const Family& family) {
    names.clear();
    for_each_rule(family, "gguf", checkpoint, [&](const BoundRule& rule) {
      for (const std::string& foreign : rule.foreign) names.emplace_back(foreign, rule.ours);
    });
  });
  return names;
}

GgufModel load_gguf_model(const fs::path& path,
                          const LoadOptions& loading,
                          const GgufModelOptions& options) {
  std::error_code error;
  if (!fs::is_directory(path, error) && format::is_gguf(path)) return read_gguf_model(path);
  const Checkpoint checkpoint = load_checkpoint(path, loading);
  GgufModel model = gguf_model_of(checkpoint, options);
  model.remarks.insert(model.remarks.begin(), checkpoint.remarks.begin(), checkpoint.remarks.end());
  return model;
}

void widen(GgufModel& model) {
  for (TensorView& tensor : model.tensors) tensor = as_float32(tensor);
  model.set("general.file_type", GgufValue::number(uint32_t{0}));
}

std::vector<fs::path> write_gguf_model(const GgufModel& model,
                                       const fs::path& out,
                                       int64_t part_bytes) {
  std::vector<format::GgufTensor> heads;
  for (const TensorView& tensor : model.tensors)
    heads.push_back({tensor.name, tensor.dtype, tensor.shape});
  return format::write_gguf_parts(
      out, model.entries, heads, [&](size_t i) { return model.tensors[i].data; }, part_bytes);
}

}  // namespace tessera::convert
