// Infini-attention: attention within segments of a document, and a linear-attention memory of all
// segments before, mixed by a learned gate for each head.
//   A_mem = s(q) M / (s(q) z + eps),   A = g A_mem + (1 - g) A_local,   g = sigmoid(beta_h)
//   after a segment:   M <- M + s(k)^T v,  z <- z + sum s(k),           s(x) = elu(x) + 1
//   update delta:      M <- M + s(k)^T (v - s(k) M / (s(k) z + eps))
// A document falls into segments of equal length, counted from its first token; the first one's
// A_mem is 0. What rotates queries and keys acts within the segment alone: the memory knows no
// positions. Munkhdalai, Faruqui, Gopal 2024, arXiv:2404.07143. Golden:
// tools/golden/infini_attention.py. Gradients reach the inputs of all segments.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

enum class MemoryUpdate {
  linear,
  delta,  // of what the memory does not say already
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::MemoryUpdate> {
  using U = nn::MemoryUpdate;
  static constexpr std::array names{std::pair{U::linear, "linear"}, std::pair{U::delta, "delta"}};
};

namespace tessera::nn {

struct InfiniAttentionConfig final : spec::Config, HeadsConfig {
  int64_t segment = 0;
  MemoryUpdate update = MemoryUpdate::delta;
  double eps = 1e-6;
  AttentionBias bias;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = InfiniAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields("width of one head; 0 = d_model / n_heads",
                            "key/value heads, each with a memory, divides n_heads; 0 = n_heads"),
        std::tuple{
            field("segment", &C::segment, "tokens of a segment", {.min = 1, .required = true}),
            field("update", &C::update, "what a segment adds to the memory"),
            field("eps", &C::eps, "added to s(q) z and s(k) z", {.min = 0}),
            field("bias", &C::bias, "which projections have a bias"),
            field("position", &C::position, "how order enters within a segment",
                  {.part = "none"})});
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"segment", 128}}; }
  static spec::Info info() {
    return {
        .summary = "Attention within segments, and a compressive memory of the segments before.",
        .paper =
            "Munkhdalai, Faruqui, Gopal: Leave No Context Behind: Efficient Infinite Context "
            "Transformers with Infini-attention, arXiv:2404.07143",
        .year = 2024,
        .forms = {.recurrent = true}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope.d_model);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// Whether the memory's keys differ from those of the segment.
  bool rotates() const { return position.info().place == spec::Place::rotation; }
};

}  // namespace tessera::nn
