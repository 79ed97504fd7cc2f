#include "tessera/nn/mixer/linear/lower_bounds.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void declare_lower_bounds(spec::ParamList& list,
                          const spec::Scope& scope,
                          LowerBound bound,
                          const char* id,
                          int64_t channels) {
  spec::ParamList all = spec::ParamList::shared(id);
  // equal rows: the bound of layer l starts at l / L
  all.add_if(
      bound == LowerBound::learned && scope.layer > 0,
      {"lower_bounds", {scope.n_layers, channels}, spec::Init::constant(0), Kind::structural});
  list.append(all);
}

}  // namespace tessera::nn
