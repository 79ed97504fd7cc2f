// The files in which PEFT keeps adapters (LoRA, DoRA, (IA)^3, prefixes and prompts:
// model/overlay.h): a folder with adapter_config.json and adapter_model.safetensors, whose tensors
// are named after the modules of the Hugging Face model:
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". Torch-free. A model's family
// (family.h) takes those names to ours, whatever the model's own file is: a GGUF file reads an
// adapter that was trained beside the folder it was made from.
#pragma once

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftTensors = "adapter_model.safetensors";

/// What stands beside one weight of ours, by the names of model::kOverlayParts ("lora_a",
/// "prefix").
inline constexpr const char* kWholePart = "whole";
struct AdapterTensors {
  std::string weight;  // "layers.3.mixer.q.weight"
  std::map<std::string, TensorView> parts = {};
  double scale = 1;      // on a product
  bool by_root = false;  // whether it is alpha / sqrt(rank)
};

/// An adapter in our terms. A matrix that several of ours are cut from gives each of them the same
/// A. Throws Error(file) for a key of the config that asks for something that is not here, for a
/// tensor without a place in `base`, and for the adapter of another model.
std::vector<AdapterTensors> read_peft(const std::filesystem::path& folder,
                                      const Checkpoint& base,
                                      const LoadOptions& options = {});

/// Writes an adapter beside `base` for the Hugging Face model of its family. Of matrices that are
/// one there, the products are put side by side: their ranks add up. Throws Error(usage) where the
/// family has no such names, or makes a matrix by more than moves of rows, and for kinds of
/// adapters that one folder of PEFT cannot hold together.
void write_peft(const std::vector<AdapterTensors>& adapter,
                const Checkpoint& base,
                const std::filesystem::path& folder,
                const LoadOptions& options = {});

}  // namespace tessera::convert
