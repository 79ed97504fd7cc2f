#include "tessera/convert/checkpoint.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/mapping.h"
#include "tessera/convert/quantized_folder.h"
#include "tessera/format/file_source.h"
#include "tessera/format/ggmf.h"
#include "tessera/format/llama2c.h"
#include "tessera/format/safetensors.h"
#include "tessera/model/kept_tokens.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr std::string_view kGgufMagic = "GGUF";
constexpr std::string_view kGgmfMagic = "fmgg";  // format::kGgmfMagic as it lies in the file
constexpr const char* kTokenizer = "tessera_tokenizer";
constexpr std::string_view kKept = "kept.";  // prefix in our folders of what the model does not use
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "tokenizer.model",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "vocab.txt",
                                           "merges.txt",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "generation_config.json"};

/// Opens the tensors of a folder, naming the folder where there are none.
format::TensorFile open_folder(const fs::path& folder) {
  return format::open_safetensors_folder(folder);
}

Checkpoint import(const Foreign& foreign, std::string_view type, FamilySet& families) {
  const Family& family = families.of_type(foreign.dialect, type, foreign.config, foreign.file);
  Importer importer(family, foreign, families.unmathematical(foreign.dialect));
  Checkpoint checkpoint;
  checkpoint.family = family.name;
  checkpoint.dialect = foreign.dialect;
  checkpoint.foreign_config = foreign.config;
  checkpoint.foreign_dialect = foreign.dialect;
  checkpoint.spec = model::read_model_spec(importer.spec_json());
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  importer.read_tensors(checkpoint);
  return checkpoint;
}

Checkpoint load_hf(const fs::path& folder, FamilySet& families) {
  const fs::path path = folder / "config.json";
  Foreign foreign{"hf", parse_hf_config(read_text_file(path, kMaxConfigBytes), path.string()),
                  nullptr, path.string()};
  const auto type = foreign.config.find("model_type");
  if (type == foreign.config.end() || !type->is_string())
    fail(ErrorKind::file, path.string(), "\"model_type\" is {}; expected the name of a family",
         type == foreign.config.end() ? "missing" : type->dump());
  families.of_type("hf", type->get<std::string>(), foreign.config,
                   path.string());  // before the tensors are looked at
  const format::TensorFile tensors = open_folder(folder);
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
  Checkpoint checkpoint = import(foreign, type->get<std::string>(), families);
  if (quantized)
    checkpoint.remarks.insert(checkpoint.remarks.begin(), quantized->remarks.begin(),
                              quantized->remarks.end());
  checkpoint.folder = folder;
  return checkpoint;
}

Checkpoint load_gguf(const fs::path& path, FamilySet& families) {
  auto file = std::make_shared<format::GgufFile>(format::open_gguf(path));
  const Foreign foreign{"gguf", gguf_config(file->metadata, path.string()), &file->tensors,
                        path.string()};
  Checkpoint checkpoint =
      import(foreign, foreign.config.at("architecture").get<std::string>(), families);
  checkpoint.folder = path.parent_path();
  checkpoint.gguf = std::move(file);
  return checkpoint;
}

Checkpoint load_llama2c(const fs::path& path, FamilySet& families) {
  const format::Llama2cFile file = format::open_llama2c(path);
  const Foreign foreign{"llama2c", llama2c_config(file.header), &file.tensors, path.string()};
  Checkpoint checkpoint = import(foreign, "", families);
  checkpoint.folder = path.parent_path();
  return checkpoint;
}

Checkpoint load_ggmf(const fs::path& path, FamilySet& families) {
  const format::GgmfFile file = format::open_ggmf(path);
  const Foreign foreign{"ggmf", ggmf_config(file.header), &file.tensors, path.string()};
  Checkpoint checkpoint = import(foreign, "", families);
  checkpoint.folder = path.parent_path();
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

Checkpoint load_tessera(const fs::path& folder, const format::TensorFile& file) {
  const auto where = fmt::format("{}, tessera_spec", file.file());
  Checkpoint checkpoint;
  checkpoint.dialect = "tessera";
  checkpoint.spec =
      model::read_model_spec(spec::parse_json(file.metadata().find("tessera_spec")->second, where));
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  read_in_order(file, checkpoint);
  checkpoint.folder = folder;
  if (const auto found = file.metadata().find(kTokenizer); found != file.metadata().end())
    checkpoint.of_bytes = found->second == "bytes";
  if (const auto found = file.metadata().find("tessera_origin"); found != file.metadata().end()) {
    const Json origin =
        parse_hf_config(found->second, fmt::format("{}, tessera_origin", file.file()));
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

Checkpoint load_folder(const fs::path& folder, FamilySet& families) {
  std::error_code ignored;
  const bool has_config = fs::exists(folder / "config.json", ignored);
  const bool has_tensors = fs::exists(folder / "model.safetensors", ignored) ||
                           fs::exists(folder / "model.safetensors.index.json", ignored);
  if (has_tensors) {
    const format::TensorFile file = open_folder(folder);
    if (file.metadata().contains("tessera_spec")) return load_tessera(folder, file);
  }
  if (has_config) return load_hf(folder, families);
  for (const char* adapter : {"adapter_config.json", "adapter.safetensors"})
    if (fs::exists(folder / adapter, ignored))
      fail(ErrorKind::file, folder.string(),
           "is an adapter; expected the model that it stands beside, and this as --adapter");
  fail(ErrorKind::file, folder.string(),
       "is no model: no config.json, and no model.safetensors with a tessera spec");
}

/// A file that is none of ours: what it is, where that can be told, and what to do.
[[noreturn]] void refuse_unknown(const fs::path& path, std::string_view text) {
  constexpr size_t kLength = 8;  // of what precedes the JSON header of safetensors
  const char* found =
      "is no model that tessera reads; expected a folder with a config.json, a GGUF "
      "file, or one of rwkv.cpp or llama2.c";
  if (text.size() > kLength && text[kLength] == '{')
    found = "begins as a safetensors file; expected the folder that holds it and its config.json";
  else if (text.starts_with("PK\x03\x04") || text.starts_with("\x80\x02"))
    found =
        "begins as a PyTorch pickle, which can run code when it is read; expected safetensors: "
        "save it once more in that format";
  else if (text.starts_with('{'))
    found = "is JSON; expected the folder that holds the checkpoint";
  fail(ErrorKind::file, path.string(), "{}", found);
}

Checkpoint load_any(const fs::path& path, const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  std::error_code error;
  if (fs::is_directory(path, error)) return load_folder(path, families);
  const auto file = MappedFile::open(path);
  const auto magic = format::text_of(file->bytes()).substr(0, kGgufMagic.size());
  if (magic == kGgufMagic) return load_gguf(path, families);
  if (magic == kGgmfMagic) return load_ggmf(path, families);
  if (format::begins_as_llama2c(file->bytes())) return load_llama2c(path, families);
  refuse_unknown(path, format::text_of(file->bytes()));
}

}  // namespace

const TensorView& Checkpoint::tensor(std::string_view name) const {
  for (const TensorView& tensor : tensors)
    if (tensor.name == name) return tensor;
  fail(ErrorKind::internal, "convert", "there is no parameter \"{}\"", name);
}

Checkpoint load_checkpoint(const fs::path& path, const LoadOptions& options) {
  Checkpoint checkpoint = load_any(path, options);
  if (options.keep_last > 0 || options.keep_heavy > 0) {
    checkpoint.spec_json = model::with_kept_tokens(checkpoint.spec, options.keep_first,
                                                   options.keep_last, options.keep_heavy);
    checkpoint.spec = model::read_model_spec(checkpoint.spec_json);
  }
  // formats order what is kept differently
  std::sort(checkpoint.kept.begin(), checkpoint.kept.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return checkpoint;
}

void write_hf_folder(const Checkpoint& checkpoint,
                     const fs::path& folder,
                     const HfOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  const std::string name = options.family.empty() ? checkpoint.family : options.family;
  if (name.empty())
    fail(ErrorKind::usage, "convert", "this checkpoint does not know its family; name one of {}",
         fmt::join(families.names(), ", "));
  const Exported exported = export_checkpoint(families.named(name), "hf", checkpoint,
                                              families.unmathematical("hf"), options.float32);
  create_folder(folder);
  format::write_safetensors_folder(folder, exported.tensors, {{"format", "pt"}},
                                   options.max_shard_bytes);
  write_file_atomically(folder / "config.json", hf_config_text(exported.config, 2) + "\n");
  if (!checkpoint.gguf) copy_tokenizer_files(checkpoint.folder, folder);
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
  if (checkpoint.foreign_config.is_object())
    options.metadata["tessera_origin"] = hf_config_text({{"family", checkpoint.family},
                                                         {"dialect", checkpoint.foreign_dialect},
                                                         {"config", checkpoint.foreign_config}});
  if (checkpoint.of_bytes) options.metadata[kTokenizer] = "bytes";
  if (options.tokenizer.empty() && !checkpoint.gguf) options.tokenizer = checkpoint.folder;
  std::vector<TensorView> tensors = checkpoint.tensors;
  for (const TensorView& tensor : checkpoint.kept) {
    tensors.push_back(tensor);
    tensors.back().name = std::string(kKept) + tensor.name;
  }
  for (TensorView& tensor : tensors) tensor = as_plain_float(tensor);
  write_tessera_folder(checkpoint.spec_json, tensors, folder, options);
}

std::vector<std::string> copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  std::error_code error;
  if (fs::equivalent(from, to, error)) return copied;
  for (const char* name : kTokenizerFiles) {
    if (!fs::is_regular_file(from / name, error)) continue;
    write_file_atomically(to / name, read_text_file(from / name));
    copied.emplace_back(name);
  }
  return copied;
}

}  // namespace tessera::convert
