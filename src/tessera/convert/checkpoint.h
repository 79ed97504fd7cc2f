// A model read from disk in our terms: its spec and its tensors under our names. Torch-free.
//
//   load_checkpoint("SmolLM2-135M")          a Hugging Face folder (config.json), quantized or not;
//                                            weights as safetensors or as torch.save wrote them
//   load_checkpoint("run/last.ckpt")         one file of weights next to a config.json
//   load_checkpoint("model.gguf")            a GGUF file
//   load_checkpoint("stories15M.bin")        a llama2.c file
//   load_checkpoint("rwkv-4-169M.bin")       an rwkv.cpp file
//   load_checkpoint("runs/7")                a run's folder: its best or newest checkpoint, which
//   is
//                                            a tessera folder (safetensors with "tessera_spec")
// Detected by content, never by name. Tensors point into the mapped file wherever the family's
// steps are moves of whole rows; they keep their storage type unless arithmetic is needed. Errors:
// Error(file) for what does not match (a key, a tensor, a shape: named), Error(spec) for a
// malformed family file or a spec that cannot work.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/convert/key_options.h"
#include "tessera/format/gguf.h"
#include "tessera/format/tensor_view.h"
#include "tessera/model/model_spec.h"

namespace tessera::convert {

using format::TensorView;
using spec::Json;

struct Checkpoint {
  model::ModelSpec spec;
  Json spec_json;                   // resolved: every default written out
  std::vector<TensorView> tensors;  // one per entry of model::parameters(spec), in that order
  std::string family;               // "" when a tessera folder does not know where it came from
  std::string dialect;              // "tessera", "hf", "gguf", "llama2c", "ggmf" or "pth"
  Json foreign_config;              // as read; null for a tessera folder without one
  std::string foreign_dialect;      // the dialect that foreign_config is in
  std::vector<TensorView> kept;  // what the model does not use and an export restores, by the names
                                 // that the family gives, sorted
  std::vector<std::string> notes;       // what was left out, one line each
  std::vector<std::string> remarks;     // what differs from what the file asks for, one line each
  std::vector<std::string> lost_heads;  // heads of the file that the model is without, one a line
  std::filesystem::path folder;  // where tokenizer files may lie: the folder, or that of the file
  std::shared_ptr<const format::GgufFile>
      gguf;               // its metadata hold the tokenizer; null for other dialects
  bool of_bytes = false;  // its tokens are bytes of text, which no file states

  /// The tensor of a parameter; throws Error(internal) when there is none.
  const TensorView& tensor(std::string_view name) const;
};

struct LoadOptions {
  std::filesystem::path
      families;  // a folder of the user's family files, read in addition to the built-in ones
  /// Tokens whose keys and values attention keeps (model/kv_eviction.h); 0 last and heavy ones =
  /// all.
  int64_t keep_first = 0, keep_last = 0, keep_heavy = 0;
  KeyOptions keys = {};             // of a foreign config
  std::filesystem::path spec = {};  // the spec of tensors of ours whose file has lost it
};

Checkpoint load_checkpoint(const std::filesystem::path& path, const LoadOptions& options = {});

/// A Hugging Face config alone: a Checkpoint without tensors, for what follows from the spec. What
/// only weights show (heads of encoders) it lacks.
Checkpoint load_config(const std::filesystem::path& config, const LoadOptions& options = {});

struct HfOptions {
  std::string family;  // "" = the checkpoint's own
  std::filesystem::path families;
  bool float32 = false;             // else bfloat16 and float16 stay; block types become float32
  std::optional<DType> dtype = {};  // f32, bf16 or f16 of all weights instead
  int64_t max_shard_bytes = int64_t{5} << 30;
  std::filesystem::path tokenizer = {};  // a model, a tokenizer file, "bytes"; empty = its own
  /// The model before quantization, which the model card measures the weights' error against.
  const Checkpoint* reference = nullptr;
};

/// What transformers opens: config.json and model.safetensors as the family's other readers know
/// them, the tokenizer in their form, generation_config.json, the ids of special tokens where the
/// checkpoint's own config does not say them, and README.md where the folder has none
/// (model_card.h). What is written is read back as a spec first: where the family cannot say this
/// architecture, Error(spec) names the first difference, and nothing is written. Returns what the
/// folder lacks, one line each.
std::vector<std::string> write_hf_folder(const Checkpoint& checkpoint,
                                         const std::filesystem::path& folder,
                                         const HfOptions& options = {});

/// Writes how the model pools a text to one vector (sentence_modules.h) into its new folder: the
/// files of its own folder, or the pooling of a GGUF file. Nothing if the model has none.
void write_sentence_modules_of(const Checkpoint& checkpoint, const std::filesystem::path& folder);

/// Why write_hf_folder() would refuse a checkpoint by its spec, of which alone this depends; ""
/// where it would not.
std::string why_not_hf(const Checkpoint& checkpoint, const HfOptions& options = {});

/// Where a checkpoint came from, as metadata of a folder of ours: its family, and the config that
/// it was read with; empty where neither is known. A run that begins from it writes the same, so
/// that its model goes back into that family's files.
format::StringMap origin_metadata(const Checkpoint& checkpoint);
/// The part of a file's metadata that origin_metadata() wrote.
format::StringMap origin_of(const format::StringMap& metadata);

struct TesseraFolderOptions {
  format::StringMap metadata;       // in addition to tessera_spec
  std::filesystem::path tokenizer;  // a folder whose tokenizer files are copied
};

/// model.safetensors with the resolved spec in its metadata, and spec.json next to it for readers.
void write_tessera_folder(const Json& spec_json,
                          std::span<const TensorView> tensors,
                          const std::filesystem::path& folder,
                          const TesseraFolderOptions& options = {});
/// The same with what is known about the origin, so that it can be exported again.
void write_tessera_folder(const Checkpoint& checkpoint,
                          const std::filesystem::path& folder,
                          TesseraFolderOptions options = {});

/// Copies tokenizer.json and its relatives, those that exist; returns their names.
std::vector<std::string> copy_tokenizer_files(const std::filesystem::path& from,
                                              const std::filesystem::path& to);

}  // namespace tessera::convert
