// Adapters on disk: a folder with
//   adapter.safetensors    as training keeps them, under our names:
//   "layers.0.mixer.q.weight.lora_a"
//                          and ".lora_b"; metadata "tessera_adapter" (the resolved spec of the
//                          model that it stands beside, and the factors on the products)
// or with the two files of PEFT (convert/peft.h).
#pragma once

#include <filesystem>

#include "tessera/convert/checkpoint.h"
#include "tessera/model/overlay.h"

namespace tessera::infer {

inline constexpr const char* kAdapterFile = "adapter.safetensors";

/// Writes adapter.safetensors into a folder that is there.
void write_adapter(const std::filesystem::path& folder,
                   const std::vector<model::Overlay>& adapter,
                   const model::ModelSpec& spec);

/// The adapter of a folder, of either kind, to stand beside `base`; of a run's folder that of its
/// newest checkpoint. Throws Error(file) for what is no adapter and Error(usage) for that of
/// another model.
std::vector<model::Overlay> read_adapter(const std::filesystem::path& folder,
                                         const convert::Checkpoint& base,
                                         const convert::LoadOptions& options = {});

/// The two files of PEFT, from an adapter of either kind. Throws what read_adapter() and
/// convert::write_peft() do.
void export_adapter(const std::filesystem::path& adapter,
                    const convert::Checkpoint& base,
                    const std::filesystem::path& folder,
                    const convert::LoadOptions& options = {});

/// The model with the adapter in its weights, computed in float32; each keeps its float type unless
/// `float32`. Throws Error(usage) for a weight in blocks of a quantiser.
convert::Checkpoint with_merged_adapter(convert::Checkpoint base,
                                        const std::filesystem::path& adapter,
                                        bool float32,
                                        const convert::LoadOptions& options = {});

}  // namespace tessera::infer
