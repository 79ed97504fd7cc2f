// What names of tensors show in addition to their roles: modules, renames of whole modules, and, by
// the files of other families, the layout of fused matrices. Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// The word before the last: "qkv_proj" of "h.*.attn.qkv_proj.weight".
std::string inner_module(const std::string& pattern);

/// Whether families have heads one after another in a fused matrix of this module, each with its
/// queries, keys and values, rather than all queries first. By the majority of their rules.
bool fused_by_head(Trial& trial, const std::string& module);

/// Renames (the base's name to the file's) of several tensors of one module, or one prefix, as one.
Json shortened(const Json& names);

}  // namespace tessera::convert
