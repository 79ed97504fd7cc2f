// Weights of parts under test: given by name, or drawn for every declared parameter.
#pragma once

#include <map>
#include <string>

#include "tessera/nn/parts.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::nn {

using Values = std::map<std::string, Tensor>;

/// Values of the i-th declared parameter: size * sin(frequency n + phase) over its elements n, with
/// frequency and phase growing by their steps from one parameter to the next.
struct Waves {
  double frequency = 0.37, frequency_step = 0.06;
  double phase = 0.1, phase_step = 0.2;
  double size = 0.5;
};

/// Draws every declared parameter that has no value yet.
inline void draw_weights(const std::vector<spec::ParamDecl>& decls,
                         Values& values,
                         const Waves& waves = {}) {
  double i = 0;
  for (const spec::ParamDecl& decl : decls) {
    if (!values.contains(decl.name))
      values[decl.name] = ops::gen(decl.shape, waves.frequency + waves.frequency_step * i,
                                   waves.phase + waves.phase_step * i) *
                          waves.size;
    i += 1;
  }
}

/// Where a part finds the values, which must outlive it: as they are, or in another type.
inline WeightSource weights_from(const Values& values,
                                 std::optional<at::ScalarType> type = std::nullopt) {
  return [&values, type](const std::string& name) -> WeightPtr {
    const auto found = values.find(name);
    if (found == values.end()) return nullptr;
    const Tensor value = type ? found->second.to(*type).contiguous() : found->second;
    return std::make_shared<ops::Weight>(ops::Weight::dense(name, value));
  };
}

}  // namespace tessera::nn
