// What a convolution in groups of channels declares.
#pragma once

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

/// weight [width, width / groups, kernel] and, if asked, bias [width].
inline void declare_grouped_conv(spec::ParamList& list,
                                 std::vector<int64_t> width_groups_kernel,
                                 const spec::Init& init,
                                 const spec::Init* bias) {
  const int64_t width = width_groups_kernel[0];
  list.add({"weight",
            {width, width / width_groups_kernel[1], width_groups_kernel[2]},
            init,
            spec::ParamKind::matrix,
            {spec::Role::out, spec::Role::none, spec::Role::none}});
  list.add_if(
      bias != nullptr,
      {"bias", {width}, bias != nullptr ? *bias : spec::Init::constant(0), spec::ParamKind::bias});
}

/// The inputs that the taps of the next token reach.
inline std::vector<spec::StateDecl> grouped_conv_state(const spec::Scope& scope,
                                                       int64_t width,
                                                       int64_t kernel) {
  if (!scope.causal || kernel == 1) return {};
  return {{.name = "inputs", .shape = {width}, .keep = kernel - 1}};
}

}  // namespace tessera::nn
