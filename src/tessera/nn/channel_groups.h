// A product in groups of channels (a grouped convolution of one tap): group g of the outputs reads
// group g of the inputs alone, so that the matrix is block-diagonal and its blocks are kept,
// [out, in / groups]. Iandola et al. 2020, arXiv:2006.11316 (SqueezeBERT).
#pragma once

#include <string_view>

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

/// y = W x (+ b) in groups: declares `name`.weight [out, in / groups] and, if asked, `name`.bias.
/// With one group it is ParamList::linear. Blocks do not read the whole input: in more
/// groups they are neither quantized nor adapted.
inline void declare_grouped_linear(spec::ParamList& list,
                                   std::string_view name,
                                   std::pair<int64_t, int64_t> out_in,
                                   int64_t groups,
                                   bool bias,
                                   spec::Init init = spec::Init::product()) {
  const auto [out, in] = out_in;
  if (groups == 1) return list.linear(name, out, in, bias, init);
  list.add({std::string(name) + ".weight",
            {out, in / groups},
            init,
            spec::ParamKind::matrix,
            {spec::Role::out, spec::Role::none}});
  list.add_if(bias, {std::string(name) + ".bias",
                     {out},
                     spec::Init::constant(0),
                     spec::ParamKind::bias});
}

/// Throws Error(spec) where `groups` of the product `name` does not divide what it makes and reads.
inline void check_channel_groups(std::string_view name,
                                 std::pair<int64_t, int64_t> out_in,
                                 int64_t groups,
                                 const spec::Scope& scope) {
  for (const int64_t width : {out_in.first, out_in.second})
    if (width % groups != 0)
      fail(ErrorKind::spec, scope.at("groups").path,
           "{} = {} does not divide {} channels; expected a divisor of {} and {}", name, groups,
           width, out_in.first, out_in.second);
}

}  // namespace tessera::nn
