// Adapters of PEFT 0.21 (LoRA, DoRA, (IA)^3, trainable tokens, prefixes and prompts:
// model/weight_adapter.h): a folder with adapter_config.json (peft_config.h) and
// adapter_model.safetensors or adapter_model.bin (peft_file.h), whose tensors are named after the
// modules of the Hugging Face model. Torch-free. A model's family (family.h) maps those names to
// ours, whatever the model's own file is: a GGUF file reads an adapter that was trained for its
// Hugging Face folder.
#pragma once

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftTensors = "adapter_model.safetensors";
inline constexpr const char* kPeftPickle = "adapter_model.bin";

/// The adapter tensors of one weight of ours, by the names of model::kOverlayParts ("lora_a",
/// "prefix").
inline constexpr const char* kWholePart = "whole";
struct AdapterTensors {
  std::string weight;  // "layers.3.mixer.q.weight"
  std::map<std::string, TensorView> parts = {};
  double scale = 1;     // on a product
  bool rslora = false;  // whether it is alpha / sqrt(rank)
};

/// The type of a weight that an adapter was merged into: its own, rounded again where that is
/// blocks of a type that can be written; float32 in place of blocks; or always float32.
enum class MergedAs { own_type, floats, float32 };

/// The model that the adapter of a folder was trained for, where that is `base` with a larger
/// vocabulary, or with an output matrix of its own in place of one tied to the token embedding: a
/// module that PEFT trains a copy of, or a product for, is tied no longer. Else `base` itself.
/// Throws what read_peft() does, and Error(usage) where the family has no such model.
Checkpoint peft_base(Checkpoint base,
                     const std::filesystem::path& folder,
                     const LoadOptions& options = {});

/// An adapter in our terms, for a model of peft_base(). A matrix that several of ours are cut from
/// gives each of them the same A; products of experts become stacks. Throws Error(file) for a key
/// of the config that asks for something that is not here, for a rank that the config does not
/// give, and Error(usage) for a tensor without a place in `base`: the adapter of another model.
std::vector<AdapterTensors> read_peft(const std::filesystem::path& folder,
                                      const Checkpoint& base,
                                      const LoadOptions& options = {});

/// Writes an adapter of `base` for the Hugging Face model of its family. Of matrices that are
/// one there, the products are concatenated: their ranks add up. Throws Error(usage) where the
/// family has no such names, or makes a matrix by more than moves of rows, and for kinds of
/// adapters that one folder of PEFT cannot hold together.
void write_peft(const std::vector<AdapterTensors>& adapter,
                const Checkpoint& base,
                const std::filesystem::path& folder,
                const LoadOptions& options = {});

}  // namespace tessera::convert
