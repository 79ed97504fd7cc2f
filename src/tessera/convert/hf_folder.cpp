// A folder that transformers opens: config.json, weights, tokenizer, ids of special tokens.
#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/generation_config.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/mapping.h"
#include "tessera/convert/model_card.h"
#include "tessera/convert/rounded.h"
#include "tessera/convert/sentence_modules.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kCard = "README.md";

/// The type that most of the floats have, as configs name it.
std::string float_type_of(std::span<const TensorView> tensors) {
  std::map<DType, int64_t> numbers;
  for (const TensorView& tensor : tensors)
    if (tensor.dtype == DType::f32 || tensor.dtype == DType::f16 || tensor.dtype == DType::bf16)
      numbers[tensor.dtype] += format::element_count(tensor.shape);
  const auto most =
      std::max_element(numbers.begin(), numbers.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == numbers.end()) return "float32";
  return most->first == DType::f16    ? "float16"
         : most->first == DType::bf16 ? "bfloat16"
                                      : "float32";
}

/// How the weights are stored: readers that take the config at its word round to it.
void set_float_type(Json& config, std::span<const TensorView> tensors) {
  const bool older = config.contains("torch_dtype");
  config[older ? "torch_dtype" : "dtype"] = float_type_of(tensors);
  if (older) config.erase("dtype");
}

/// Puts the tokenizer into the folder; returns why other programs do not read it, or "".
std::string write_tokenizer(const Checkpoint& checkpoint,
                            const fs::path& folder,
                            const fs::path& tokenizer) {
  if (!tokenizer.empty()) return copy_tokenizer_to_hf(tokenizer, folder);
  if (checkpoint.of_bytes) return copy_tokenizer_to_hf("bytes", folder);
  if (checkpoint.gguf) return copy_tokenizer_to_hf(*checkpoint.gguf, folder);
  if (checkpoint.dialect == "tessera" && holds_tokenizer(checkpoint.folder))
    return copy_tokenizer_to_hf(checkpoint.folder, folder);
  // a form that transformers has no file of: tokenizer.json is made of it
  if (checkpoint.dialect == "llama2c" && text::tokenizer_file_in(checkpoint.folder))
    return copy_tokenizer_to_hf(checkpoint.folder, folder);
  copy_tokenizer_files(checkpoint.folder, folder);
  return "";
}

}  // namespace

void write_sentence_modules_of(const Checkpoint& checkpoint, const fs::path& folder) {
  if (!checkpoint.gguf) {
    if (!checkpoint.folder.empty()) copy_sentence_modules(checkpoint.folder, folder);
    return;
  }
  const SentenceModules modules = sentence_modules_of(*checkpoint.gguf, checkpoint.folder.string());
  if (modules.stated) write_sentence_modules(modules, checkpoint.spec.width_out(), folder);
}

namespace {

/// Other tokens that end a text, as GGUF metadata name them.
std::vector<int64_t> further_ends(const Checkpoint& checkpoint) {
  std::vector<int64_t> ends;
  if (!checkpoint.gguf) return ends;
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (checkpoint.gguf->metadata.find(key) != nullptr)
      ends.push_back(checkpoint.gguf->metadata.get_i64(key));
  return ends;
}

/// Ids of special tokens that the model has rows for, by the keys of configs.
Json special_ids(const text::Tokenizer& tokenizer, const Checkpoint& checkpoint) {
  const int64_t vocab = checkpoint.spec.vocab;
  Json ids = Json::object();
  const auto add = [&](const char* key, std::optional<int32_t> id) {
    if (id && *id < vocab) ids[key] = *id;
  };
  add("pad_token_id", tokenizer.pad());
  if (checkpoint.spec.arch == model::Arch::encoder) return ids;
  add("bos_token_id", tokenizer.bos());
  add("eos_token_id", tokenizer.eos());
  Json ends = ids.contains("eos_token_id") ? Json::array({ids["eos_token_id"]}) : Json::array();
  for (const int64_t end : further_ends(checkpoint))
    if (end >= 0 && end < vocab && std::find(ends.begin(), ends.end(), Json(end)) == ends.end())
      ends.push_back(end);
  if (ends.size() > 1) ids["eos_token_id"] = ends;
  if (ends.size() == 1) ids["eos_token_id"] = ends[0];
  return ids;
}

/// What generate() of transformers begins and ends a text with; the config has it too, for older
/// readers.
void write_ids(const Json& ids, Json& config, const fs::path& folder, bool replaces) {
  for (const auto& [key, id] : ids.items())
    if (replaces || !config.contains(key) || config[key].is_null()) config[key] = id;
  const fs::path file = folder / kGenerationConfig;
  if (!config.contains("eos_token_id") || (fs::is_regular_file(file) && !replaces)) return;
  Json generation = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"})
    if (config.contains(key) && !config[key].is_null()) generation[key] = config[key];
  write_file_atomically(file, generation.dump(2) + "\n");
}

/// The families whose configs can say this spec, for a model that came from none.
std::string families_that_fit(const Checkpoint& checkpoint, FamilySet& families) {
  std::vector<std::string> fitting;
  for (const std::string& name : families.names())
    if (why_not_exportable(families.named(name), "hf", checkpoint, families).empty())
      fitting.push_back(name);
  return fitting.empty() ? "no family's config can describe this spec; --to tessera writes it"
                         : fmt::format("pass --family with one of those that can describe it: {}",
                                       fmt::join(fitting, ", "));
}

const Family& family_for(const Checkpoint& checkpoint,
                         FamilySet& families,
                         const HfOptions& options) {
  const std::string name = options.family.empty() ? checkpoint.family : options.family;
  if (name.empty())
    fail(ErrorKind::usage, "convert", "model family unknown; {}",
         families_that_fit(checkpoint, families));
  return families.named(name);
}

}  // namespace

std::string why_not_hf(const Checkpoint& checkpoint, const HfOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  return why_not_exportable(family_for(checkpoint, families, options), "hf", checkpoint, families);
}

namespace {

/// As export_checkpoint(); of texts that are pooled as no class of the family does, with the
/// remedy.
Exported exported_as(const Family& family,
                     const Checkpoint& checkpoint,
                     FamilySet& families,
                     bool float32) {
  try {
    return export_checkpoint(family, "hf", checkpoint, families, float32);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::spec || !checkpoint.spec.pooler) throw;
    const std::string own = fmt::format("[{}] ", family.name);
    const std::string_view what = error.what();
    fail(ErrorKind::spec, family.name,
         "{}; if its pooling is what differs: objective.pool = null trains the pooler of the "
         "family's class, --to tessera writes this model",
         what.starts_with(own) ? what.substr(own.size()) : what);
  }
}

/// The tensor of that name and shape in the model before quantization.
const TensorView& exact_of(const TensorView& written,
                           const std::map<std::string_view, TensorView>& exact) {
  const auto found = exact.find(written.name);
  if (found == exact.end())
    fail(ErrorKind::usage, "reference",
         "no tensor {}; expected the model before quantization, of the same architecture",
         format::in_quotes(written.name));
  if (found->second.shape != written.shape)
    fail(ErrorKind::usage, "reference",
         "tensor {} has shape [{}]; expected [{}], as in the model that is converted",
         format::in_quotes(written.name), fmt::join(found->second.shape, ", "),
         fmt::join(written.shape, ", "));
  return found->second;
}

/// Rounds the tensors to the type that is written. Returns their error by groups: against the
/// reference, or against what was read where rounding changed it.
std::vector<GroupError> round_tensors(std::vector<TensorView>& tensors,
                                      const HfOptions& options,
                                      const Family& family,
                                      FamilySet& families) {
  if (!options.dtype && options.reference == nullptr) return {};
  Exported reference;
  std::map<std::string_view, TensorView> exact;
  if (options.reference != nullptr) {
    reference = export_checkpoint(family, "hf", *options.reference, families, /*float32=*/false);
    for (const TensorView& tensor : reference.tensors) exact.emplace(tensor.name, tensor);
  }
  std::vector<GroupError> errors;
  bool differs = false;
  for (TensorView& tensor : tensors) {
    const TensorView written = options.dtype ? rounded_to(tensor, *options.dtype) : tensor;
    const WeightError error =
        error_of(written, options.reference != nullptr ? exact_of(written, exact) : tensor);
    differs = differs || error.errors > 0;
    add_error(errors, written.name, error);
    tensor = written;
  }
  if (!differs && options.reference == nullptr) errors.clear();
  return errors;
}

}  // namespace

std::vector<std::string> write_hf_folder(const Checkpoint& checkpoint,
                                         const fs::path& folder,
                                         const HfOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  const Family& family = family_for(checkpoint, families, options);
  Exported exported = exported_as(family, checkpoint, families, options.float32);
  const std::vector<GroupError> errors = round_tensors(exported.tensors, options, family, families);
  create_folder(folder);
  format::write_safetensors_folder(folder, exported.tensors, {{"format", "pt"}},
                                   options.max_shard_bytes);
  std::vector<std::string> lines;
  if (const std::string why = write_tokenizer(checkpoint, folder, options.tokenizer); !why.empty())
    lines.push_back(
        fmt::format("the tokenizer stays in a form that other programs do not read: {}", why));
  write_sentence_modules_of(checkpoint, folder);
  if (options.tokenizer.empty() && !checkpoint.gguf)
    copy_generation_config(checkpoint.folder, folder);
  set_float_type(exported.config, exported.tensors);
  if (holds_tokenizer(folder)) try {
      const text::Tokenizer tokenizer =
          find_tokenizer(folder, static_cast<int32_t>(checkpoint.spec.vocab));
      write_ids(special_ids(tokenizer, checkpoint), exported.config, folder,
                !options.tokenizer.empty());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::file) throw;
      lines.push_back(fmt::format("ids of special tokens stay as they were: {}", error.what()));
    }
  write_file_atomically(folder / "config.json", hf_config_text(exported.config, 2) + "\n");
  if (const fs::path card = folder / kCard; !fs::exists(card))
    write_file_atomically(card, model_card(checkpoint, {.family = family.name,
                                                        .dtype = float_type_of(exported.tensors),
                                                        .errors = errors,
                                                        .reference = options.reference,
                                                        .lost = lines}));
  // a family that packs its matrices writes bytes
  const bool packs = std::any_of(exported.tensors.begin(), exported.tensors.end(),
                                 [](const TensorView& t) { return t.dtype == DType::u8; });
  if (options.dtype.value_or(DType::f32) == DType::f32)
    if (const std::string line =
            widened_line(checkpoint.tensors, [&](const TensorView&) { return packs; });
        !line.empty())
      lines.push_back(line);
  return lines;
}

}  // namespace tessera::convert
