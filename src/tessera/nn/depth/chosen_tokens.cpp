#include "tessera/nn/depth/chosen_tokens.h"

#include <algorithm>

namespace tessera::nn {
namespace {

Tensor taken(const Tensor& values, int64_t axis, const Tensor& tokens) {
  return values.defined() ? values.index_select(axis, tokens.to(values.device())) : values;
}

}  // namespace

ChosenTokens ChosenTokens::of(const Batch& whole,
                              const std::vector<uint8_t>& chosen,
                              const DepthLayer& layer,
                              const Context& context) {
  ChosenTokens out;
  for (const Segment& s : whole.segments) {
    auto places = std::make_shared<std::vector<int64_t>>();
    const auto begin = static_cast<int64_t>(out.tokens.size());
    for (int64_t i = 0; i < s.length; ++i)
      if (chosen[static_cast<size_t>(s.begin + i)] != 0) {
        out.tokens.push_back(s.begin + i);
        places->push_back(s.places ? (*s.places)[static_cast<size_t>(i)] : s.start + i);
      }
    if (places->empty()) continue;
    Segment part = s;
    part.begin = begin;
    part.length = static_cast<int64_t>(places->size());
    part.start = layer.seen(context, s);
    part.prefix = std::lower_bound(places->begin(), places->end(), s.prefix) - places->begin();
    part.places = std::move(places);
    out.batch.segments.push_back(std::move(part));
  }
  const Tensor tokens = at::tensor(out.tokens, at::kLong);
  out.batch.ids_N = taken(whole.ids_N, 0, tokens);
  out.batch.before_NM = taken(whole.before_NM, 0, tokens);
  out.batch.types_N = taken(whole.types_N, 0, tokens);
  out.batch.positions_N = taken(whole.positions_N, 0, tokens);
  out.batch.axes_3N = taken(whole.axes_3N, 1, tokens);
  out.batch.global_N = taken(whole.global_N, 0, tokens);
  return out;
}

Context ChosenTokens::context(const Context& whole) const {
  Context inner = whole.over(batch);
  inner.probe = {};
  inner.call.replace = nullptr;
  return inner;
}

}  // namespace tessera::nn
