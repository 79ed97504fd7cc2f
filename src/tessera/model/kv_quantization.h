// KV cache quantization: which layers support it (spec/kv_type.h). Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// True if a part with these declarations stores only keys or values per token, and they may be
/// quantized.
bool can_quantize_kv(const std::vector<spec::StateDecl>& decls);
/// True if some branch of the layout supports it.
bool can_quantize_kv(const std::vector<BranchState>& layout);

/// Rejects another type than f32 if it would have no effect: Error(usage) for a model without a
/// state, Error(spec) if no layer supports it.
void check_kv_type(const ModelSpec& spec, spec::KvType type);

/// "layers.1.mixer (hyena)": the branches with entries per token that stay f32 for every type.
std::vector<std::string> kept_in_full(const ModelSpec& spec);
/// The first few of them, and the number of others, for one line.
std::string some_of(const std::vector<std::string>& names);

}  // namespace tessera::model
