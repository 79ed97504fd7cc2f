// The tensors of an adapter in PEFT's terms, by the modules that their names name:
//   base_model.model.MODULE.lora_A.weight             a product of low rank: lora_A [r, in], lora_B
//                                                     [out, r], its bias lora_B.bias [out]
//   base_model.model.MODULE.lora_embedding_A          that of a table: A [r, tokens], B [width, r]
//   base_model.model.MODULE.lora_magnitude_vector     DoRA
//   base_model.model.MODULE.ia3_l                     factors
//   base_model.model.MODULE.token_adapter.trainable_tokens_delta   rows of a table
//   base_model.model.MODULE.weight, .base_layer.weight,            a tensor of the model itself
//     .token_adapter.base_layer.weight
//   base_model.model.MODULE.modules_to_save.weight                 a second copy of MODULE.weight
//   base_model.model.MODULE.original_module.weight                 what MODULE.weight replaced
//   prompt_embeddings                                 virtual tokens
// An adapter's name ("lora_A.default.weight", "modules_to_save.default.weight") and the absence of
// "base_model.model." change nothing.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tessera/convert/peft_config.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_view.h"

namespace tessera::convert {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// What a file holds for one module; null = not there.
struct PeftModule {
  const format::TensorView *a = nullptr, *b = nullptr, *bias = nullptr;
  const format::TensorView *table_a = nullptr, *table_b = nullptr;
  const format::TensorView* magnitude = nullptr;
  const format::TensorView* factors = nullptr;
  const format::TensorView* tokens = nullptr;
};

struct PeftFile {
  std::map<std::string, PeftModule> modules;               // "model.layers.0.self_attn.q_proj"
  std::map<std::string, const format::TensorView*> whole;  // "lm_head.weight", without base_layer
  const format::TensorView* vectors = nullptr;
};

/// adapter_model.safetensors, or else adapter_model.bin, as PEFT wrote before it.
format::TensorFile open_peft_tensors(const std::filesystem::path& folder);

/// Throws Error(file) for a name that the kind of adapter has not, for a tensor that is there
/// twice or with two values, for halves of products, and where lora_A and lora_B have no common
/// rank.
PeftFile read_peft_file(const format::TensorFile& file, const PeftConfig& config);

}  // namespace tessera::convert
