#include "tessera/model/virtual_tokens.h"

#include <algorithm>

#include "tessera/nn/mixer/attention/attention.h"

namespace tessera::model {
namespace {

/// The same, and the reason if a layer has none.
std::vector<std::string> key_values(const ModelSpec& spec, std::string* reason) {
  std::vector<std::string> out;
  for (size_t i = 0; i < spec.layers.size(); ++i)
    for (const GroupSpec& group : spec.layers[i].groups)
      for (const BranchSpec& branch : group.branches) {
        if (branch.part.mechanism->slot != spec::Slot::mixer) continue;
        const auto* attention = dynamic_cast<const nn::AttentionConfig*>(branch.part.config.get());
        const std::string prefix = spec.prefix(static_cast<int64_t>(i), branch);
        if (attention == nullptr && reason != nullptr && reason->empty())
          *reason = fmt::format("mixer \"{}\" of {} has no keys to put before those of a document",
                                branch.part.type(), prefix);
        if (attention == nullptr || !attention->kv_of.empty()) continue;
        if (attention->k_eq_v) {
          if (reason != nullptr && reason->empty())
            *reason = fmt::format("{} has k_eq_v: its values are its keys", prefix);
          continue;
        }
        for (const char* name : {".k.weight", ".v.weight"})
          if (std::find(out.begin(), out.end(), prefix + name) == out.end())
            out.push_back(prefix + name);
      }
  return out;
}

}  // namespace

std::string no_virtual_reason(const ModelSpec& spec, bool layers) {
  if (spec.arch != Arch::decoder || spec.encoder)
    return fmt::format("arch \"{}\"; expected \"decoder\"", name_of(spec.arch));
  std::string reason;
  if (layers) key_values(spec, &reason);
  return reason;
}

std::vector<std::string> key_value_weights(const ModelSpec& spec) {
  return key_values(spec, nullptr);
}

}  // namespace tessera::model
