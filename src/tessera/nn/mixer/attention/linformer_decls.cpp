#include <cmath>

#include "tessera/nn/mixer/attention/linformer.h"

namespace tessera::nn {

void LinformerConfig::check(const spec::Scope& scope) const {
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "linformer needs an encoder: each of its slots mixes all positions, so that a causal "
         "query would read its future; use multi_level_attention, whose blocks are read only once "
         "they are complete");
  const bool learned = method == SlotMethod::linear || filters();
  if (method == SlotMethod::conv_heads && order == SlotOrder::compress_then_project)
    fail(ErrorKind::spec, scope.path,
         "method conv_heads filters keys and values of heads, which tokens do not have; use order "
         "project_then_compress, or method conv");
  if (learned && max_length == 0)
    fail(ErrorKind::spec, scope.path,
         "max_length = 0; expected the longest document, which {} is made for",
         method == SlotMethod::linear ? "E" : "the filter");
  if (max_length != 0 && max_length < n_slots)
    fail(ErrorKind::spec, scope.path, "max_length = {} is below n_slots = {}", max_length, n_slots);
  if (share == SlotShare::none &&
      (method != SlotMethod::linear || order == SlotOrder::compress_then_project))
    fail(ErrorKind::spec, scope.path,
         "share none gives every head its own E; expected method linear and order "
         "project_then_compress, or share headwise");
  if (one_for_both() && !learned)
    fail(ErrorKind::spec, scope.path,
         "share {} has nothing to share: method mean and max have no weights; use headwise",
         share == SlotShare::kv ? "kv" : "layerwise");
}

void LinformerConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t inner = n_heads * head_dim;
  list.linear("q", inner, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", inner, scope.d_model, bias.k);
  list.linear("v", inner, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, inner, bias.o, spec::Init::into_stream(scope.n_layers));
  const auto compress = [&](spec::ParamList& to, const char* name) {
    if (method == SlotMethod::linear) {
      // Xavier with gain 1/sqrt(2)
      const double bound = std::sqrt(3.0 / static_cast<double>(n_slots + max_length));
      to.linear(name, (share == SlotShare::none ? n_heads : 1) * n_slots, max_length, false,
                spec::Init::uniform(-bound, bound));
    } else if (method == SlotMethod::conv_heads) {
      const double bound = 1 / std::sqrt(static_cast<double>(head_dim * filter_width()));
      to.add({std::string(name) + ".weight",
              {inner, head_dim, filter_width()},
              spec::Init::uniform(-bound, bound),
              spec::ParamKind::structural});
    } else if (method == SlotMethod::conv) {
      const double bound = 1 / std::sqrt(static_cast<double>(filter_width()));
      const int64_t channels = order == SlotOrder::compress_then_project ? scope.d_model : inner;
      to.add({std::string(name) + ".weight",
              {channels, filter_width()},
              spec::Init::uniform(-bound, bound),
              spec::ParamKind::structural});
    } else {
      to.without(std::string(name) + ".weight");
    }
  };
  if (share == SlotShare::layerwise) {
    spec::ParamList all = spec::ParamList::shared(kShared);
    compress(all, "compress_k");
    all.without("compress_v.weight");
    return list.append(all);
  }
  compress(list, "compress_k");
  if (one_for_both()) return list.without("compress_v.weight");
  compress(list, "compress_v");
}

double LinformerConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  const int64_t inner = n_heads * head_dim;
  const int64_t compressed = order == SlotOrder::compress_then_project ? scope.d_model : inner;
  // two compressions (a slot reads every token, or one run), scores and weighted values
  const int64_t reads = method == SlotMethod::linear       ? n_slots
                        : method == SlotMethod::conv_heads ? head_dim
                                                           : 1;
  return 4.0 * static_cast<double>(compressed * reads) + 4.0 * static_cast<double>(inner * n_slots);
}

}  // namespace tessera::nn
