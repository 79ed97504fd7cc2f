#include "tessera/nn/position/shaw.h"

namespace tessera::nn {

void ShawConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t rows = left + right.value_or(left) + 1;
  for (const char* name : {"key.weight", "value.weight"})
    if (values || std::string_view(name) == "key.weight")
      list.add({name,
                {rows, scope.width},
                spec::Init::table(),
                spec::ParamKind::embedding,
                {spec::Role::position, spec::Role::none}});
}

}  // namespace tessera::nn
