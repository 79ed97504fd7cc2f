// Linear attention: a feature map in place of the softmax, so that keys and values sum up in a
// state of fixed size.
//   S_t = S_{t-1} + phi(k_t) v_t^T,  z_t = z_{t-1} + phi(k_t)
//   o_t = S_t^T phi(q_t) / (z_t . phi(q_t) + eps);  out = W_o o
// In an encoder S and z are the sums over the whole document. There the map may be a softmax, over
// the channels of a query and over the tokens of each channel of the keys: efficient attention
// (Shen et al. 2018, arXiv:1812.01243), whose sums need no normaliser.
// The map may be learned: hadamard is phi(x) = (A x + a) * (B x + b) of each head's channels, with
// matrices of their own for queries and keys unless tied_features (the same for all heads;
// flash-linear-attention's elementwise_product). With sum_norm_q or sum_norm_k, phi is divided by
// the sum of its channels, and with head_norm each head's output is normed before W_o.
// Katharopoulos et al. 2020, arXiv:2006.16236. Forms: chunked (parallel when chunk >= T),
// recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

enum class FeatureMap {
  elu1,      // elu(x) + 1
  relu,      //
  exp,       //
  identity,  //
  softmax,   // over a query's channels, and over the document for each of the keys' channels
  hadamard,  // the product of two learned maps
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::FeatureMap> {
  using F = nn::FeatureMap;
  static constexpr std::array names{
      std::pair{F::elu1, "elu1"},       std::pair{F::relu, "relu"},
      std::pair{F::exp, "exp"},         std::pair{F::identity, "identity"},
      std::pair{F::softmax, "softmax"}, std::pair{F::hadamard, "hadamard"}};
};

namespace tessera::nn {

struct LinearAttentionConfig final : RecurrentConfig {
  FeatureMap feature = FeatureMap::elu1;
  std::optional<bool> normaliser;
  double eps = 1e-6;
  bool bias = false;
  bool tied_features = false;
  bool sum_norm_q = false, sum_norm_k = false;
  spec::Part<spec::Slot::norm> head_norm;

  static constexpr auto fields() {
    using C = LinearAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{field("feature", &C::feature, "phi, the map of queries and keys"),
                   field("normaliser", &C::normaliser,
                         "divide by z . phi(q); null = with elu1, relu and exp"),
                   field("eps", &C::eps, "added to the normaliser", {.min = 0}),
                   field("bias", &C::bias, "biases of the projections"),
                   field("tied_features", &C::tied_features,
                         "whether queries and keys have one learned map"),
                   field("sum_norm_q", &C::sum_norm_q,
                         "whether phi of a query is divided by its sum + 1e-4"),
                   field("sum_norm_k", &C::sum_norm_k,
                         "whether phi of a key is divided by its sum + 1e-4"),
                   field("head_norm", &C::head_norm,
                         "norm of each head's output before W_o, one weight for all heads")});
  }
  static spec::Info info() {
    return {.summary = "Attention with a feature map instead of the softmax, linear in the length.",
            .paper =
                "Katharopoulos et al.: Transformers are RNNs: Fast Autoregressive Transformers "
                "with Linear Attention, arXiv:2006.16236",
            .year = 2020,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  /// Columns of the state: the values and, where asked for, the sum of the keys.
  int64_t columns() const { return value_dim + (normaliser.value_or(true) ? 1 : 0); }

  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = head_width(scope);
    if (!normaliser) normaliser = sums_are_positive();
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = value_dim;
    return scope;
  }
  /// Whether phi of any key is positive, so that its sum can divide.
  bool sums_are_positive() const {
    return feature != FeatureMap::identity && feature != FeatureMap::softmax &&
           feature != FeatureMap::hadamard;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
