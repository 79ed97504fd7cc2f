// Loads a model from any supported format; weights stay memory-mapped in their storage type.
#pragma once

#include <filesystem>
#include <optional>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/generation_config.h"
#include "tessera/infer/sampling/sampling.h"
#include "tessera/model/model.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {

struct LoadedModel {
  model::Model model;
  std::optional<text::Tokenizer> tokenizer;  // if the model has one
  convert::Checkpoint source;
  convert::GenerationConfig generation = {};  // of its folder or GGUF file
};

/// A tessera or Hugging Face folder, a GGUF file or a llama2.c file, detected by content.
/// `arithmetic` is that of products with quantized weights where no gradient is recorded.
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options = {},
                       kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);

/// The same with the sum of the adapters in these folders (adapter.h). The chat template and stop
/// tokens that an adapter was trained with replace the model's (convert/text_settings.h).
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);
/// With one adapter.
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::filesystem::path& adapter,
                       kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);

/// All stop tokens of the model: those of its tokenizer and of its generation config.
std::vector<int64_t> eos_ids(const LoadedModel& loaded);
/// The weights of a checkpoint, as stored; also for another spec with the same parameters.
model::Weights weights_of(const convert::Checkpoint& checkpoint);
model::Weights weights_of(const convert::Checkpoint& checkpoint, const model::ModelSpec& spec);

}  // namespace tessera::infer
