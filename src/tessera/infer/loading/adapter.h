// Adapter files (LoRA and others): a folder with adapter.safetensors, as training writes it, or
// with the two files of PEFT (convert/peft.h).
//
//   adapter.safetensors    tensors under tessera's names: "layers.0.mixer.q.weight.lora_a" and the
//                          other parts in kOverlayParts; fully trained weights under their own
//                          names; metadata "tessera_adapter": the resolved spec of the base
//                          model, the fingerprint of its weights, and the scaling factors
#pragma once

#include <filesystem>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/peft.h"
#include "tessera/model/weight_adapter.h"

namespace tessera::infer {

inline constexpr const char* kAdapterFile = "adapter.safetensors";

/// Writes adapter.safetensors into an existing folder; `model` is the base model, with or without
/// the adapter.
void write_adapter(const std::filesystem::path& folder,
                   const std::vector<model::WeightAdapter>& adapter,
                   const model::Model& model);

/// Reads an adapter of either kind for `base`; for a run's folder, that of its newest checkpoint.
/// Throws Error(file) for a folder without an adapter, Error(usage) for an adapter of another spec
/// or other weights.
std::vector<model::WeightAdapter> read_adapter(const std::filesystem::path& folder,
                                               const convert::Checkpoint& base,
                                               const convert::LoadOptions& options = {});

/// The model that an adapter was trained for, if it differs from `base` in its head, in a head that
/// is no longer tied, or in its vocabulary; the adapter has these weights. Otherwise `base`.
convert::Checkpoint base_for_adapter(convert::Checkpoint base,
                                     const std::filesystem::path& adapter,
                                     const convert::LoadOptions& options = {});

/// Throws Error(usage) if the adapter of a checkpoint was trained on other weights.
void check_adapter_base(const std::filesystem::path& checkpoint, const model::Weights& weights);

/// Adapters of one model, by name, chosen per call (multi-LoRA). All models share the weights of
/// the base. The loaded model must outlive it. Not thread-safe.
struct LoadedModel;
class Adapters {
 public:
  Adapters(const LoadedModel& base, convert::LoadOptions options);
  /// Throws Error(usage) for a name that is taken or an adapter with another vocabulary, and what
  /// read_adapter() and with_adapters() throw.
  void add(const std::string& name, const std::filesystem::path& folder);
  std::vector<std::string> names() const;
  /// The model with the sum of these adapters; created once. Throws Error(usage) for an unknown
  /// name, and for adapters that cannot be added.
  const model::Model& with(const std::vector<std::string>& names);

 private:
  struct Adapter {
    std::filesystem::path folder;
    std::vector<model::WeightAdapter> overlays;
  };
  /// The model that these were trained for, sharing the base's weights where it has them.
  model::Model base_of(const convert::Checkpoint& checkpoint) const;

  const LoadedModel& base_;
  convert::LoadOptions options_;
  std::map<std::string, Adapter> adapters_;
  std::map<std::vector<std::string>, model::Model> models_;
};

/// Writes the two files of PEFT from an adapter of either kind. Throws what read_adapter() and
/// convert::write_peft() throw.
void export_adapter(const std::filesystem::path& adapter,
                    const convert::Checkpoint& base,
                    const std::filesystem::path& folder,
                    const convert::LoadOptions& options = {});

/// Merges the adapter into the weights, computed in float32. A remark of the checkpoint reports
/// quantized weights. Throws Error(usage) for virtual tokens.
convert::Checkpoint with_merged_adapter(convert::Checkpoint base,
                                        const std::filesystem::path& adapter,
                                        convert::MergedAs as = convert::MergedAs::own_type,
                                        const convert::LoadOptions& options = {});
/// The inverse: removes a merged adapter from a model, up to rounding.
convert::Checkpoint without_merged_adapter(convert::Checkpoint base,
                                           const std::filesystem::path& adapter,
                                           convert::MergedAs as = convert::MergedAs::own_type,
                                           const convert::LoadOptions& options = {});

}  // namespace tessera::infer
