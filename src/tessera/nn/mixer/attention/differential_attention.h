// Differential attention: every head is the difference of two softmax maps over the same values, so
// that what both maps attend to by accident cancels.
//   A = softmax(q1 k1^T / sqrt(e)) - lambda softmax(q2 k2^T / sqrt(e))
//   lambda = exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init
//   o = (1 - lambda_init) norm(A v);   lambda_init = 0.8 - 0.6 exp(-0.3 layer)
// What a position adds to the scores, it adds to both maps of a head by the same parameters; a
// pattern hides the same keys from both.
// Ye et al. 2024, arXiv:2410.05258. Golden: attention G4.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class MapLayout {
  paired,  // head i is projected by the sub-heads 2i and 2i + 1, its value lies together (DIFF)
  halves,  // all first maps, then all second ones; values likewise (DiffLlama)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::MapLayout> {
  static constexpr std::array names{std::pair{nn::MapLayout::paired, "paired"},
                                    std::pair{nn::MapLayout::halves, "halves"}};
};

namespace tessera::nn {

struct DifferentialAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  MapLayout layout = MapLayout::paired;
  std::optional<double> lambda_init;
  spec::Part<spec::Slot::norm> norm;
  AttentionBias bias;
  spec::Part<spec::Slot::pattern> pattern;
  spec::Part<spec::Slot::position> position;
  double dropout = 0;

  static constexpr auto fields() {
    using C = DifferentialAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "differential heads, each of two maps",
              {.min = 1, .required = true}),
        field("n_kv_heads", &C::n_kv_heads,
              "differential key/value heads, divides n_heads; 0 = n_heads", {.min = 0}),
        field("head_dim", &C::head_dim,
              "e, width of a query in one map; values have 2 e; 0 = d_model / (2 n_heads)",
              {.min = 0}),
        field("layout", &C::layout, "how the two maps lie in the projections"),
        field("lambda_init", &C::lambda_init, "null = 0.8 - 0.6 exp(-0.3 layer), layers from 0"),
        field("norm", &C::norm, "norm of a head's output, 2 e channels", {.part = "rms_norm"}),
        field("bias", &C::bias, "which projections have a bias"),
        field("pattern", &C::pattern, "who sees whom", {.part = "full"}),
        field("position", &C::position, "how order enters", {.part = "none"}),
        field("dropout", &C::dropout, "probability on the weights of each map, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {.summary = "Every head is the difference of two softmax maps over the same values.",
            .paper = "Ye et al.: Differential Transformer, arXiv:2410.05258",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true}};
  }
  int64_t width_of_map(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / (2 * n_heads) : 0;
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_map(scope);
    if (name == "norm") scope.width *= 2;
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    require_heads_divide(head_dim, 2 * n_heads, scope.d_model, scope, "2 n_heads");
    head_dim = width_of_map(scope);
    if (n_kv_heads == 0) n_kv_heads = n_heads;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// lambda_init of layer `layer` (from 0).
  double initial_lambda(int64_t layer) const;
  const PatternConfig& pattern_config() const { return pattern.as<PatternConfig>(); }
};

}  // namespace tessera::nn
