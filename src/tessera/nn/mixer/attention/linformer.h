// Linformer: keys and values are compressed along the sequence to a fixed number of slots, so that
// attention costs O(T n_slots).
//   K' = E K, V' = F V  (E, F: n_slots x T);   o = softmax(q K'^T / sqrt(D)) V'
// Wang et al. 2020, arXiv:2006.04768. Golden: attention G5.
//
// Encoders only: each slot mixes all positions, so a query that reads one has read the future. A
// shorter document takes the first T columns of E and F. Documents are compressed one by one.
#pragma once

#include <algorithm>

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class SlotMethod {
  linear,      // learned E and F over the positions
  conv,        // one filter per channel, its width also its stride
  conv_heads,  // filters of each head from all of its channels to all of them
  mean,        // over runs of ceil(T / n_slots) tokens
  max,
};
enum class SlotShare {
  none,       // E and F of every head
  headwise,   // one E and one F
  kv,         // one matrix for keys and values
  layerwise,  // one matrix for keys and values of all layers that say so
};
enum class SlotOrder {
  compress_then_project,  // K' = W_k (E x), as the released code does
  project_then_compress,  // K' = E (W_k x): differs where a projection has a bias, and for max
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::SlotMethod> {
  using M = nn::SlotMethod;
  static constexpr std::array names{std::pair{M::linear, "linear"}, std::pair{M::conv, "conv"},
                                    std::pair{M::conv_heads, "conv_heads"},
                                    std::pair{M::mean, "mean"}, std::pair{M::max, "max"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::SlotShare> {
  using S = nn::SlotShare;
  static constexpr std::array names{std::pair{S::none, "none"}, std::pair{S::headwise, "headwise"},
                                    std::pair{S::kv, "kv"}, std::pair{S::layerwise, "layerwise"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::SlotOrder> {
  using O = nn::SlotOrder;
  static constexpr std::array names{std::pair{O::compress_then_project, "compress_then_project"},
                                    std::pair{O::project_then_compress, "project_then_compress"}};
};

namespace tessera::nn {

struct LinformerConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t n_slots = 0;
  int64_t max_length = 0;
  SlotMethod method = SlotMethod::linear;
  SlotShare share = SlotShare::headwise;
  SlotOrder order = SlotOrder::project_then_compress;
  AttentionBias bias;
  double dropout = 0;

  static constexpr auto fields() {
    using C = LinformerConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("n_slots", &C::n_slots, "compressed keys and values", {.min = 1, .required = true}),
        field("max_length", &C::max_length,
              "longest document: the columns of E and F, and n_slots times the filter's width; 0 = "
              "any (mean and max only)",
              {.min = 0}),
        field("method", &C::method, "how runs of tokens become a slot"),
        field("share", &C::share, "which matrices are one"),
        field("order", &C::order, "whether tokens or their keys and values are compressed"),
        field("bias", &C::bias, "which projections have a bias"),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"n_slots", std::min<int64_t>(128, length)}, {"max_length", length}};
  }
  static spec::Info info() {
    return {.summary =
                "Attention to a fixed number of slots into which keys and values are "
                "compressed.",
            .paper =
                "Wang et al.: Linformer: Self-Attention with Linear Complexity, "
                "arXiv:2006.04768",
            .year = 2020,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void complete(const spec::Scope& scope) override {
    require_heads_divide(head_dim, n_heads, scope.d_model, scope);
    if (head_dim == 0) head_dim = scope.d_model / n_heads;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return max_length; }
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  static constexpr const char* kShared = "linformer";  // id of the matrix of all layers
  bool one_for_both() const { return share == SlotShare::kv || share == SlotShare::layerwise; }
  bool filters() const { return method == SlotMethod::conv || method == SlotMethod::conv_heads; }
  /// Taps of the filter, and its stride.
  int64_t filter_width() const { return (max_length + n_slots - 1) / n_slots; }
};

}  // namespace tessera::nn
