// Keys and values that layers share (cross-layer attention): a layer leaves its own under a name,
// and later ones use them as they were made; these have queries and an output of their own and keep
// no state. Brandon et al. 2024, arXiv:2405.12981; Gemma 3n. Successors of attention 4.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/fields.h"
#include "tessera/spec/placed.h"

namespace tessera::nn {

struct KvSharingConfig {
  std::string kv_name;
  std::string kv_of;

  static constexpr auto fields() {
    using C = KvSharingConfig;
    using spec::field;
    return std::tuple{
        field("kv_name", &C::kv_name, "a name under which later layers use its keys and values"),
        field("kv_of", &C::kv_of,
              "the kv_name of an earlier layer whose keys and values it uses; \"\" = its own")};
  }
  /// Whether it makes keys and values itself.
  bool has_keys() const { return kv_of.empty(); }
  /// Whether other layers use its keys and values, or it theirs.
  bool shares_keys() const { return !kv_name.empty() || !kv_of.empty(); }
  /// The config, of class C, of the last earlier layer of the name kv_of. Throws Error(spec) where
  /// there is none.
  template <class C>
  const C& kv_source(const std::vector<spec::Placed>& before, const spec::Scope& scope) const {
    const C* source = nullptr;
    for (const spec::Placed& placed : before)
      if (const auto* other = dynamic_cast<const C*>(placed.part.config.get());
          other != nullptr && other->kv_name == kv_of)
        source = other;
    if (source == nullptr)
      fail(ErrorKind::spec, scope.path + ".kv_of",
           "no earlier layer has kv_name \"{}\"; give one that name", kv_of);
    return *source;
  }
};

}  // namespace tessera::nn
