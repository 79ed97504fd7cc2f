// What parts declare that norm the streams of a token, each alone (stream_norm.h).
#pragma once

#include "tessera/nn/norm/norm_weight.h"

namespace tessera::nn {

/// `name`.weight of `streams` streams of `width` channels, where the norm has one.
inline void declare_stream_norm(spec::ParamList& list,
                                const std::string& name,
                                int64_t streams,
                                int64_t width,
                                NormWeight weight) {
  list.add_if(weight != NormWeight::none,
              {name + ".weight",
               {streams * width},
               spec::Init::constant(weight == NormWeight::plain ? 1 : 0),
               spec::ParamKind::norm});
}

}  // namespace tessera::nn
