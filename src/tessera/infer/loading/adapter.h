// Adapters on disk: a folder with
//   adapter.safetensors    as training keeps them, under our names:
//   "layers.0.mixer.q.weight.lora_a"
//                          and what else kOverlayParts names, weights that are trained whole under
//                          their own; metadata "tessera_adapter" (the resolved spec of the model
//                          that it stands beside, what tells its weights from others, and the
//                          factors on the products)
// or with the two files of PEFT (convert/peft.h).
#pragma once

#include <filesystem>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/peft.h"
#include "tessera/model/weight_adapter.h"

namespace tessera::infer {

inline constexpr const char* kAdapterFile = "adapter.safetensors";

/// Writes adapter.safetensors into a folder that is there; `model` has the adapter on its weights,
/// or is the one that it stands beside.
void write_adapter(const std::filesystem::path& folder,
                   const std::vector<model::WeightAdapter>& adapter,
                   const model::Model& model);

/// The adapter of a folder, of either kind, to stand beside `base`; of a run's folder that of its
/// newest checkpoint. Throws Error(file) for what is no adapter and Error(usage) for that of
/// another model: of another spec, or of other weights.
std::vector<model::WeightAdapter> read_adapter(const std::filesystem::path& folder,
                                               const convert::Checkpoint& base,
                                               const convert::LoadOptions& options = {});

/// The model that an adapter was trained for, where that differs from `base` in its head, in a
/// head that is tied no longer or in its vocabulary: the adapter brings the weights. `base` itself
/// for any other adapter.
convert::Checkpoint base_for_adapter(convert::Checkpoint base,
                                     const std::filesystem::path& adapter,
                                     const convert::LoadOptions& options = {});

/// Throws Error(usage) where the adapter of a checkpoint was trained beside other weights.
void check_adapter_base(const std::filesystem::path& checkpoint, const model::Weights& weights);

/// Adapters of one model, by name, of which each call may choose other ones: all models share the
/// weights of the base. The loaded model must outlive it.
struct LoadedModel;
class Adapters {
 public:
  Adapters(const LoadedModel& base, convert::LoadOptions options);
  /// Throws Error(usage) for a name that is taken, for an adapter with another vocabulary, and what
  /// read_adapter() and with_adapters() do.
  void add(const std::string& name, const std::filesystem::path& folder);
  std::vector<std::string> names() const;
  /// The model with these, whose products add up; made once. Throws Error(usage) for a name that is
  /// not there, and for adapters that do not add up.
  const model::Model& with(const std::vector<std::string>& names);

 private:
  struct Adapter {
    std::filesystem::path folder;
    std::vector<model::WeightAdapter> overlays;
  };
  /// The model that these were trained for, with the base's own weights where it has them.
  model::Model base_of(const convert::Checkpoint& checkpoint) const;

  const LoadedModel& base_;
  convert::LoadOptions options_;
  std::map<std::string, Adapter> adapters_;
  std::map<std::vector<std::string>, model::Model> models_;
};

/// The two files of PEFT, from an adapter of either kind. Throws what read_adapter() and
/// convert::write_peft() do.
void export_adapter(const std::filesystem::path& adapter,
                    const convert::Checkpoint& base,
                    const std::filesystem::path& folder,
                    const convert::LoadOptions& options = {});

/// The model with the adapter in its weights, computed in float32. A remark of the checkpoint says
/// what became of weights in blocks. Throws Error(usage) for virtual tokens.
convert::Checkpoint with_merged_adapter(convert::Checkpoint base,
                                        const std::filesystem::path& adapter,
                                        convert::MergedAs as = convert::MergedAs::own_type,
                                        const convert::LoadOptions& options = {});
/// The way back: a model that the adapter was merged into, without it, to rounding.
convert::Checkpoint without_merged_adapter(convert::Checkpoint base,
                                           const std::filesystem::path& adapter,
                                           convert::MergedAs as = convert::MergedAs::own_type,
                                           const convert::LoadOptions& options = {});

}  // namespace tessera::infer
