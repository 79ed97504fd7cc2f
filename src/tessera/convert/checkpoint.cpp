#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/checkpoint.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/mapping.h"
#include "tessera/convert/no_model.h"
#include "tessera/convert/params_folder.h"
#include "tessera/convert/quantized_folder.h"
#include "tessera/convert/wrapped_names.h"
#include "tessera/format/file_source.h"
#include "tessera/format/ggmf.h"
#include "tessera/format/is_gguf.h"
#include "tessera/format/llama2c.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/format/torch_file.h"
#include "tessera/model/kv_eviction.h"
#include "tessera/text/tokenizer_files/companions.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr std::string_view kGgmfMagic = "fmgg";  // format::kGgmfMagic as it lies in the file
constexpr const char* kSpec = "tessera_spec";
constexpr const char* kOrigin = "tessera_origin";
constexpr const char* kTokenizer = "tessera_tokenizer";
constexpr std::string_view kKept = "kept.";  // prefix in our folders of what the model does not use
/// In addition to text::kTokenizerCompanions.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "spiece.model",
                                           "sentencepiece.bpe.model",
                                           "spm.model",
                                           "source.spm",
                                           "target.spm",
                                           "target_vocab.json",
                                           "normalizer.json",
                                           "preprocessor_config.json",
                                           "processor_config.json",
                                           "vocab.json",
                                           "vocab.txt",
                                           "merges.txt",
                                           "generation_config.json"};

format::TensorFile open_folder(const fs::path& folder, std::vector<std::string>& notes) {
  if (!format::holds_tensor_files(folder)) refuse_folder(folder);
  return format::open_tensor_folder(folder, &notes);
}

/// What load_checkpoint() was asked for.
struct Loading {
  const LoadOptions& options;
  FamilySet& families;
};

/// Takes out the keys that the user wants ignored.
void erase_keys(Json& config, const std::vector<std::string>& globs, const std::string& prefix) {
  for (auto it = config.begin(); it != config.end();) {
    const std::string path = prefix + it.key();
    if (matches_any(path, globs)) {
      it = config.erase(it);
      continue;
    }
    if (it->is_object()) erase_keys(*it, globs, path + ".");
    ++it;
  }
}

/// All but the tensors.
Checkpoint import_spec(Importer& importer, const Foreign& foreign, const Family& family) {
  Checkpoint checkpoint;
  checkpoint.family = family.name;
  checkpoint.dialect = foreign.dialect;
  checkpoint.foreign_config = foreign.config;
  checkpoint.foreign_dialect = foreign.dialect;
  checkpoint.spec = model::read_model_spec(importer.spec_json());
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  checkpoint.remarks = importer.remarks();
  return checkpoint;
}

Checkpoint import(Foreign& foreign, std::string_view type, const Loading& loading) {
  FamilySet& families = loading.families;
  erase_keys(foreign.config, loading.options.keys.ignore, "");
  const Family& family = families.of_type(foreign.dialect, type, foreign.config, foreign.file);
  Importer importer(family, foreign, families, loading.options.keys);
  Checkpoint checkpoint;
  try {
    checkpoint = import_spec(importer, foreign, family);
    importer.read_tensors(checkpoint);
  } catch (const Error& error) {
    throw families.located(error, family.name);
  }
  if (!importer.head_differs(checkpoint)) {
    importer.check_same(checkpoint);
    return checkpoint;
  }
  // transformers keeps both; what merging an adapter into a tied model leaves
  Importer apart(family, foreign, families, loading.options.keys, Tied::never);
  Checkpoint both = import_spec(apart, foreign, family);
  apart.read_tensors(both);
  apart.check_same(both);
  both.remarks.emplace_back(
      "the output matrix differs from the token embedding, to which the config ties it; both are "
      "kept, as transformers keeps them (tie_word_embeddings false silences this)");
  return both;
}

/// "" where a family knows the config by its own keys.
std::string type_of(const Foreign& foreign, FamilySet& families) {
  const auto type = foreign.config.find("model_type");
  if (type == foreign.config.end() && families.knows_untyped(foreign.dialect, foreign.config))
    return "";
  if (type == foreign.config.end() || !type->is_string())
    fail(ErrorKind::file, foreign.file, "\"model_type\" is {}; expected the name of a family",
         type == foreign.config.end() ? "missing" : type->dump());
  return type->get<std::string>();
}

/// As import(), and where the file's names are not those of the family, once more without a prefix
/// that they share.
Checkpoint import_unwrapped(Foreign& foreign, std::string_view type, const Loading& loading) {
  try {
    return import(foreign, type, loading);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::file || foreign.packed != nullptr) throw;
    const format::TensorFile* as_written = foreign.tensors;
    for (const Unwrapped& way : unwrapped(*as_written)) try {
        foreign.tensors = &way.file;
        Checkpoint checkpoint = import(foreign, type, loading);
        checkpoint.remarks.push_back(fmt::format("{}: names are read without their prefix \"{}\"",
                                                 as_written->file(), way.prefix));
        return checkpoint;
      } catch (const Error& other) {
        if (other.kind() != ErrorKind::file) throw;
      }
    throw;  // what the file lacks as it is
  }
}

/// Opens weights, with notes; asked once the config is known to be of a family.
using OpenWeights = std::function<format::TensorFile(std::vector<std::string>& notes)>;

/// The model of a folder's config with these weights.
Checkpoint load_hf(const fs::path& folder, const Loading& loading, const OpenWeights& weights) {
  const fs::path path = folder / "config.json";
  Foreign foreign{"hf", parse_hf_config(read_text_file(path, kMaxConfigBytes), path.string()),
                  nullptr, path.string()};
  const std::string type = type_of(foreign, loading.families);
  loading.families.of_type("hf", type, foreign.config, foreign.file);  // before the tensors
  std::vector<std::string> notes;
  const format::TensorFile tensors = weights(notes);
  // what auto-gptq wrote before configs held it
  std::string quantized_by = path.string();
  if (const fs::path older = folder / "quantize_config.json";
      !foreign.config.contains("quantization_config") && fs::exists(older)) {
    quantized_by = older.string();
    Json& json = foreign.config["quantization_config"];
    json = parse_hf_config(read_text_file(older, kMaxConfigBytes), quantized_by);
    if (json.is_object() && !json.contains("quant_method")) json["quant_method"] = "gptq";
  }
  const auto quantized = read_quantized_folder(foreign.config, quantized_by, tensors);
  foreign.tensors = quantized ? &quantized->tensors : &tensors;
  if (quantized) foreign.packed = &quantized->packed;
  Checkpoint checkpoint = import_unwrapped(foreign, type, loading);
  if (quantized)
    checkpoint.remarks.insert(checkpoint.remarks.begin(), quantized->remarks.begin(),
                              quantized->remarks.end());
  checkpoint.remarks.insert(checkpoint.remarks.begin(), notes.begin(), notes.end());
  checkpoint.folder = folder;
  return checkpoint;
}

Checkpoint load_gguf(const fs::path& path, const Loading& loading) {
  auto file = std::make_shared<format::GgufFile>(format::open_gguf(path));
  Foreign foreign{"gguf", gguf_config(file->metadata, path.string()), &file->tensors,
                  path.string()};
  Checkpoint checkpoint =
      import(foreign, foreign.config.at("architecture").get<std::string>(), loading);
  checkpoint.folder = path.parent_path();
  checkpoint.gguf = std::move(file);
  return checkpoint;
}

Checkpoint load_llama2c(const fs::path& path, const Loading& loading) {
  const format::Llama2cFile file = format::open_llama2c(path);
  Foreign foreign{"llama2c", llama2c_config(file.header), &file.tensors, path.string()};
  Checkpoint checkpoint = import(foreign, "", loading);
  checkpoint.folder = path.parent_path();
  return checkpoint;
}

/// Meta's folder: the keys and names that llama2.c took over.
Checkpoint load_params(const fs::path& folder, const Loading& loading) {
  const ParamsFolder params = read_params_folder(folder);
  Foreign foreign{"llama2c", params.config, &params.tensors, params.file};
  Checkpoint checkpoint = import(foreign, "", loading);
  checkpoint.folder = folder;
  // the file does not say it, and releases differ
  if (params.config.value("use_scaled_rope", Json()) == true &&
      !params.config.contains("rope_scaling_factor"))
    checkpoint.remarks.push_back(
        fmt::format("{}: use_scaled_rope without its factor: 8 is used, that of release 3.1; for "
                    "release 3.2 add \"rope_scaling_factor\": 32",
                    params.file));
  return checkpoint;
}

Checkpoint load_ggmf(const fs::path& path, const Loading& loading) {
  const format::GgmfFile file = format::open_ggmf(path);
  Foreign foreign{"ggmf", ggmf_config(file.header), &file.tensors, path.string()};
  Checkpoint checkpoint = import(foreign, "", loading);
  checkpoint.folder = path.parent_path();
  return checkpoint;
}

/// A file of torch.save without a config, where a family knows it by its tensors' names; else
/// nothing.
std::optional<Checkpoint> load_bare_torch(const fs::path& path, const Loading& loading) {
  std::vector<std::string> notes;
  const format::TensorFile file = format::open_tensor_file(path, &notes);
  Json names = Json::array();
  for (const TensorView& tensor : file.tensors()) names.push_back(tensor.name);
  Foreign foreign{"pth", {{"tensors", std::move(names)}}, &file, path.string()};
  if (!loading.families.knows_untyped(foreign.dialect, foreign.config)) return std::nullopt;
  Checkpoint checkpoint = import(foreign, "", loading);
  checkpoint.foreign_config = Json();  // there is none to remember
  checkpoint.folder = path.parent_path();
  checkpoint.remarks.insert(checkpoint.remarks.begin(), notes.begin(), notes.end());
  return checkpoint;
}

/// The tensors of a folder of ours in the order of the spec's parameters: all of them, and no
/// others but those kept.
void read_in_order(const format::TensorFile& file, Checkpoint& checkpoint) {
  std::vector<TensorView>& tensors = checkpoint.tensors;
  for (const spec::ParamDecl& decl : model::parameters(checkpoint.spec)) {
    const TensorView& tensor = file.at(decl.name);
    if (tensor.shape != decl.shape)
      fail(ErrorKind::file, file.file(), "tensor {} has shape {}; its spec says {}",
           format::in_quotes(decl.name), format::shape_text(tensor.shape),
           format::shape_text(decl.shape));
    if (!layout_of(tensor.dtype).is_float)
      fail(ErrorKind::file, file.file(), "tensor {} has type {}; expected a floating-point type",
           format::in_quotes(decl.name), name_of(tensor.dtype));
    tensors.push_back(tensor);
  }
  std::vector<std::string_view> names;
  for (const TensorView& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  for (const TensorView& tensor : file.tensors()) {
    if (std::binary_search(names.begin(), names.end(), tensor.name)) continue;
    if (!tensor.name.starts_with(kKept))
      fail(ErrorKind::file, file.file(), "tensor {} is not in its spec",
           format::in_quotes(tensor.name));
    checkpoint.kept.push_back(tensor);
    checkpoint.kept.back().name = tensor.name.substr(kKept.size());
  }
  for (const format::UnsupportedTensor& tensor : file.unsupported())
    fail(ErrorKind::file, file.file(), "tensor {} is not in its spec",
         format::in_quotes(tensor.name));
}

/// The spec that the file's metadata hold, else that of --spec.
model::ModelSpec spec_of(const format::TensorFile& file, const LoadOptions& options) {
  const auto own = file.metadata().find(kSpec);
  if (own != file.metadata().end())
    return model::read_model_spec(
        spec::parse_json(own->second, fmt::format("{}, {}", file.file(), kSpec)));
  return model::load_model_spec(options.spec, {});
}

/// Tensors under our names, with their spec in the metadata, or next to them.
Checkpoint load_tessera(const fs::path& folder,
                        const format::TensorFile& file,
                        const LoadOptions& options) {
  Checkpoint checkpoint;
  checkpoint.dialect = "tessera";
  checkpoint.spec = spec_of(file, options);
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  read_in_order(file, checkpoint);
  checkpoint.folder = folder;
  if (const auto found = file.metadata().find(kTokenizer); found != file.metadata().end())
    checkpoint.of_bytes = found->second == "bytes";
  if (const auto found = file.metadata().find(kOrigin); found != file.metadata().end()) {
    const Json origin = parse_hf_config(found->second, fmt::format("{}, {}", file.file(), kOrigin));
    const auto text = [&](const char* key) {
      return origin.is_object() && origin.contains(key) && origin[key].is_string()
                 ? origin[key].get<std::string>()
                 : "";
    };
    checkpoint.family = text("family");
    checkpoint.foreign_dialect = text("dialect");
    if (origin.is_object() && origin.contains("config") && origin["config"].is_object())
      checkpoint.foreign_config = origin["config"];
  }
  return checkpoint;
}

Checkpoint load_folder(const fs::path& folder, const Loading& loading) {
  std::error_code ignored;
  const bool has_config = fs::exists(folder / "config.json", ignored);
  const fs::path& spec = loading.options.spec;
  if (format::holds_tensor_files(folder)) {
    std::vector<std::string> notes;
    const format::TensorFile file = open_folder(folder, notes);
    const bool own = file.metadata().contains(kSpec);
    if (own) refuse_second_spec(spec, folder);
    if (own || !spec.empty()) {
      Checkpoint checkpoint = load_tessera(folder, file, loading.options);
      checkpoint.remarks = std::move(notes);
      return checkpoint;
    }
    if (!has_config) refuse_without_spec(folder);
    return load_hf(folder, loading, [&](std::vector<std::string>& known) {
      known = notes;
      return file;
    });
  }
  if (has_config)
    return load_hf(folder, loading,
                   [&](std::vector<std::string>& notes) { return open_folder(folder, notes); });
  if (holds_params(folder)) return load_params(folder, loading);
  refuse_folder(folder);
}

Checkpoint load_any(const fs::path& path, const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  const Loading loading{options, families};
  std::error_code error;
  if (fs::is_directory(path, error)) return load_folder(path, loading);
  const auto file = MappedFile::open(path);
  const std::string_view text = format::text_of(file->bytes());
  const bool safetensors = format::begins_as_safetensors(text);
  if (!options.spec.empty() && safetensors)
    return load_tessera(path.parent_path(), format::open_safetensors(path), options);
  refuse_second_spec(options.spec, path);
  if (format::is_gguf(text)) return load_gguf(path, loading);
  if (text.starts_with(kGgmfMagic)) return load_ggmf(path, loading);
  if (format::begins_as_llama2c(file->bytes())) return load_llama2c(path, loading);
  if (safetensors || format::begins_as_torch(text))
    if (const fs::path folder = model_folder(path); folder != path)
      return load_hf(folder, loading, [&](std::vector<std::string>& notes) {
        return format::open_tensor_file(path, &notes);
      });
  if (format::begins_as_torch(text))
    if (std::optional<Checkpoint> checkpoint = load_bare_torch(path, loading))
      return std::move(*checkpoint);
  refuse_file(path, text);
}

}  // namespace

const TensorView& Checkpoint::tensor(std::string_view name) const {
  for (const TensorView& tensor : tensors)
    if (tensor.name == name) return tensor;
  fail(ErrorKind::internal, "convert", "there is no parameter \"{}\"", name);
}

Checkpoint load_checkpoint(const fs::path& path, const LoadOptions& options) {
  Checkpoint checkpoint = load_any(checkpoint_place(path), options);
  if (const std::string about = about_place(path); !about.empty())
    checkpoint.remarks.insert(checkpoint.remarks.begin(), about);
  if (options.keep_last > 0 || options.keep_heavy > 0) {
    checkpoint.spec_json = model::with_kv_eviction(checkpoint.spec, options.keep_first,
                                                   options.keep_last, options.keep_heavy);
    checkpoint.spec = model::read_model_spec(checkpoint.spec_json);
  }
  // formats order the kept tensors differently
  std::sort(checkpoint.kept.begin(), checkpoint.kept.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return checkpoint;
}

Checkpoint load_config(const fs::path& config, const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  const format::TensorFile none;
  Foreign foreign{"hf", parse_hf_config(read_text_file(config, kMaxConfigBytes), config.string()),
                  &none, config.string()};
  for (const char* key : {"quantization_config", "compression_config"}) foreign.config.erase(key);
  erase_keys(foreign.config, options.keys.ignore, "");
  const Family& family =
      families.of_type("hf", type_of(foreign, families), foreign.config, foreign.file);
  Importer importer(family, foreign, families, options.keys);
  return import_spec(importer, foreign, family);
}

format::StringMap origin_metadata(const Checkpoint& checkpoint) {
  if (!checkpoint.foreign_config.is_object()) return {};
  return {{kOrigin, hf_config_text({{"family", checkpoint.family},
                                    {"dialect", checkpoint.foreign_dialect},
                                    {"config", checkpoint.foreign_config}})}};
}

format::StringMap origin_of(const format::StringMap& metadata) {
  const auto found = metadata.find(kOrigin);
  return found == metadata.end() ? format::StringMap() : format::StringMap{*found};
}

void write_tessera_folder(const Json& spec_json,
                          std::span<const TensorView> tensors,
                          const fs::path& folder,
                          const TesseraFolderOptions& options) {
  create_folder(folder);
  format::StringMap metadata = options.metadata;
  metadata["format"] = "pt";
  metadata["tessera_spec"] = spec_json.dump();
  format::write_safetensors_folder(folder, tensors, metadata);
  write_file_atomically(folder / "spec.json", spec_json.dump(1) + "\n");
  if (!options.tokenizer.empty()) copy_tokenizer_files(options.tokenizer, folder);
}

void write_tessera_folder(const Checkpoint& checkpoint,
                          const fs::path& folder,
                          TesseraFolderOptions options) {
  options.metadata.merge(origin_metadata(checkpoint));
  if (checkpoint.of_bytes) options.metadata[kTokenizer] = "bytes";
  if (options.tokenizer.empty() && !checkpoint.gguf) options.tokenizer = checkpoint.folder;
  std::vector<TensorView> tensors = checkpoint.tensors;
  for (const TensorView& tensor : checkpoint.kept) {
    tensors.push_back(tensor);
    tensors.back().name = std::string(kKept) + tensor.name;
  }
  for (TensorView& tensor : tensors) tensor = as_plain_float(tensor);
  write_tessera_folder(checkpoint.spec_json, tensors, folder, options);
  write_sentence_modules_of(checkpoint, folder);
}

std::vector<std::string> copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  std::error_code error;
  if (fs::equivalent(from, to, error)) return copied;
  const auto copy = [&](const char* name) {
    if (!fs::is_regular_file(from / name, error)) return;
    create_folder((to / name).parent_path());
    write_file_atomically(to / name, read_text_file(from / name));
    copied.emplace_back(name);
  };
  for (const char* name : kTokenizerFiles) copy(name);
  for (const char* name : text::kTokenizerCompanions) copy(name);
  return copied;
}

}  // namespace tessera::convert
