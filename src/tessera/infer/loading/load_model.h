// A model ready to run from anything on disk: weights stay mapped, in their storage type.
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
  std::optional<text::Tokenizer> tokenizer;  // where the model has one
  convert::Checkpoint source;
  convert::GenerationConfig generation = {};  // of its folder or GGUF file
};

/// A tessera or Hugging Face folder, a GGUF file or a llama2.c file, told apart by content.
/// Its weights in blocks are multiplied in this arithmetic where no gradient is recorded.
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options = {},
                       kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);

/// The same with the adapters of folders beside its weights (adapter.h), whose products add up. The
/// chat template and the ends of texts that an adapter was trained with are the model's then
/// (convert/text_settings.h).
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);
/// With one.
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::filesystem::path& adapter,
                       kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);

/// All tokens that end a text of the model: its tokenizer's, and those of its generation config.
std::vector<int64_t> eos_ids(const LoadedModel& loaded);
/// The weights of a checkpoint, as they lie there; for another spec with the same parameters.
model::Weights weights_of(const convert::Checkpoint& checkpoint,
                          kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);
model::Weights weights_of(const convert::Checkpoint& checkpoint,
                          const model::ModelSpec& spec,
                          kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);

}  // namespace tessera::infer
