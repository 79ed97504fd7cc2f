#include "tessera/model/prefix.h"

#include <algorithm>

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::model {
namespace {

template <class Visit>
void for_each_pattern(const ModelSpec& spec, Visit visit) {
  if (!spec.causal()) return;
  const auto look = [&](const AnyPart& part) {
    if (part.mechanism->slot == Slot::pattern) visit(part.as<nn::PatternConfig>());
  };
  for (const LayerSpec& layer : spec.layers)
    for (const GroupSpec& group : layer.groups)
      for (const BranchSpec& branch : group.branches) spec::for_each_part(branch.part, look);
}

}  // namespace

bool reads_prefix(const ModelSpec& spec) {
  bool found = false;
  for_each_pattern(spec, [&](const nn::PatternConfig& p) { found = found || p.prefix(1) > 0; });
  return found;
}

int64_t longest_prefix(const ModelSpec& spec, int64_t given) {
  int64_t longest = 0;
  for_each_pattern(spec, [&](const nn::PatternConfig& pattern) {
    longest = std::max(longest, pattern.prefix(given));
  });
  return longest;
}

}  // namespace tessera::model
