// Which layers can keep what they hold per token in fewer bits (spec/kv_type.h). Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// Whether a part that declares these keeps keys or values, and nothing else per token, that may be
/// rounded.
bool can_quantize_kv(const std::vector<spec::StateDecl>& decls);
/// Whether some branch of the layout does, so that the type of its keys and values means something.
bool can_quantize_kv(const std::vector<BranchState>& layout);

/// Refuses another type than f32 where nothing would be kept in it: Error(usage) for a model
/// without a state, Error(spec) where no layer can.
void check_kv_type(const ModelSpec& spec, spec::KvType type);

/// "layers.1.mixer (hyena)": the branches that keep entries per token and stay at f32 whatever the
/// type.
std::vector<std::string> kept_in_full(const ModelSpec& spec);
/// The first few of them, and how many more, for one line.
std::string some_of(const std::vector<std::string>& names);

}  // namespace tessera::model
