// Performer: softmax attention estimated by positive random features (FAVOR+), in linear time and
// with a state of fixed size.
//   o_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j),
//   phi(x)_r = m^-1/2 (exp(w_r . y - |y|^2 / 2 - c) + eps),  y = x D^-1/4,  w_r ~ N(0, I)
// or, trigonometric, m^-1/2 exp(|y|^2 / 2) [sin(w_r . y), cos(w_r . y)]: no bias either, but sums
// of both signs, which large keys and small denominators make inaccurate. Choromanski et al. 2020,
// arXiv:2009.14794. Golden: attention G5.
//
// Rows of three Hadamard matrices with random signs between them (H-ORF, for which no direction is
// stored but its signs) are from Choromanski, Rowland, Weller 2017, arXiv:1703.00864.
//
// The directions w are no parameters: they follow from `seed` and the layer's name, as initial
// values do. A causal row takes the largest score c of the keys it sees; the released code takes it
// over all keys, which lets eps leak the future. Forms: chunked without a state, recurrent with
// one.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class RandomFeatures {
  softmax,             // n_features positive features
  softmax_hyperbolic,  // with w and -w: twice as many, less variance
  trigonometric,       // sines and cosines: twice as many, of both signs
  relu,                // max(w . x, 0) + eps: a kernel of its own
  relu_deterministic,  // max(x, 0) + eps, without directions
};
enum class FeatureRows {
  orthogonal,           // in blocks of head_dim, with the norms of Gaussian rows
  orthogonal_sqrt_dim,  // with norm sqrt(head_dim)
  hadamard,  // the same, rows of H D_1 H D_2 H D_3: Hadamard matrices and diagonals of random signs
  gaussian,
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RandomFeatures> {
  using F = nn::RandomFeatures;
  static constexpr std::array names{
      std::pair{F::softmax, "softmax"}, std::pair{F::softmax_hyperbolic, "softmax_hyperbolic"},
      std::pair{F::trigonometric, "trigonometric"}, std::pair{F::relu, "relu"},
      std::pair{F::relu_deterministic, "relu_deterministic"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::FeatureRows> {
  using R = nn::FeatureRows;
  static constexpr std::array names{std::pair{R::orthogonal, "orthogonal"},
                                    std::pair{R::orthogonal_sqrt_dim, "orthogonal_sqrt_dim"},
                                    std::pair{R::hadamard, "hadamard"},
                                    std::pair{R::gaussian, "gaussian"}};
};

namespace tessera::nn {

struct PerformerConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t n_features = 0;
  RandomFeatures features = RandomFeatures::softmax;
  FeatureRows rows = FeatureRows::orthogonal;
  int64_t redraw_every = 0;
  int64_t seed = 0;
  std::optional<double> eps;
  AttentionBias bias;
  spec::Part<spec::Slot::position> position;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = PerformerConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("n_features", &C::n_features,
              "m, directions per head; 0 = head_dim ln(head_dim), rounded up; relu_deterministic "
              "has head_dim features",
              {.min = 0}),
        field(
            "features", &C::features,
            "what a direction gives; trigonometric features have both signs, and where their sums "
            "nearly cancel, rounding shows"),
        field("rows", &C::rows,
              "how the directions are drawn; hadamard needs a head_dim that is a power of two"),
        field("redraw_every", &C::redraw_every,
              "steps of training after which it draws new directions; 0 = never. Evaluation keeps "
              "the first ones",
              {.min = 0}),
        field("seed", &C::seed, "of the directions, with the layer's name", {.min = 0}),
        field("eps", &C::eps,
              "added to every feature; null = 1e-6, with relu 1e-3, with trigonometric 0",
              {.min = 0}),
        field("bias", &C::bias, "which projections have a bias"),
        field("position", &C::position, "how order enters", {.part = "none"}),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "Softmax attention estimated by random features, in linear time.",
            .paper = "Choromanski et al.: Rethinking Attention with Performers, arXiv:2009.14794",
            .year = 2020,
            .forms = {.chunked = true, .recurrent = true, .recorded = true}};
  }
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope);
    if (name == "position") scope.places = {.rotation = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// Channels of phi.
  int64_t phi_width() const {
    const bool both =
        features == RandomFeatures::softmax_hyperbolic || features == RandomFeatures::trigonometric;
    return deterministic() ? head_dim : both ? 2 * n_features : n_features;
  }
  bool deterministic() const { return features == RandomFeatures::relu_deterministic; }
  double added() const {
    const bool relu = features == RandomFeatures::relu || deterministic();
    return eps.value_or(features == RandomFeatures::trigonometric ? 0 : relu ? 1e-3 : 1e-6);
  }
};

}  // namespace tessera::nn
