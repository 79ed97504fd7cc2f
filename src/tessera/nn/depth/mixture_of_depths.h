// Mixture of Depths: a layer computes the tokens that its router finds most in need of it; the
// others pass by. With r_i = w . x_i, I the k = max(1, floor(capacity T)) largest of a document's
// T:
//   x_i' = x_i + r_i (layer(X_I)_i - x_i)  for i in I,  x_i' = x_i  for others
// The layer sees the tokens of I alone, in their order; rotations and learned positions stay those
// of the document, distances of patterns and of terms on scores count the tokens that it sees.
//
// The k largest of a document are known when all of it is. So in training a predictor learns
// whether a token is among them, by binary cross-entropy, and in inference of a decoder it chooses:
// "router", the router itself, sigmoid(r) > 1/2; "mlp", a small network on x of its own. What the
// predictor learns changes nothing in front of it. An encoder takes the k largest always.
// Raposo et al. 2024, arXiv:2404.02258, sec. 3.
#pragma once

#include "tessera/nn/depth/depth_config.h"

namespace tessera::nn {

enum class DepthPredictor { router, mlp };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::DepthPredictor> {
  static constexpr std::array names{std::pair{nn::DepthPredictor::router, "router"},
                                    std::pair{nn::DepthPredictor::mlp, "mlp"}};
};

namespace tessera::nn {

struct MixtureOfDepthsConfig final : DepthConfig {
  double capacity = 0.125;
  DepthPredictor predictor = DepthPredictor::router;
  int64_t d_hidden = 0;
  double loss = 0.01;

  static constexpr auto fields() {
    using C = MixtureOfDepthsConfig;
    return std::tuple{
        spec::field("capacity", &C::capacity, "share of a document's tokens that it computes",
                    {.min = 1e-9, .max = 1}),
        spec::field("predictor", &C::predictor,
                    "what chooses tokens where later ones are not there yet"),
        spec::field("d_hidden", &C::d_hidden, "hidden width of predictor mlp; 0 = d_model / 2",
                    {.min = 0}),
        spec::field("loss", &C::loss, "factor on the predictor's loss", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "A router chooses the tokens that a layer computes.",
            .paper = "Raposo et al.: Mixture-of-Depths, arXiv:2404.02258",
            .year = 2024,
            .causality = spec::Causality::selection,
            .forms = {.recurrent = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (predictor == DepthPredictor::mlp && d_hidden == 0)
      d_hidden = std::max<int64_t>(1, scope.d_model / 2);
  }
  void check(const spec::Scope& scope) const override {
    if (predictor == DepthPredictor::router && d_hidden != 0)
      fail(ErrorKind::spec, scope.path + ".d_hidden",
           "found {} with predictor \"router\", which has none; leave it out", d_hidden);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("router", 1, scope.d_model, false);
    if (predictor != DepthPredictor::mlp) return;
    list.linear("predictor.up", d_hidden, scope.d_model, true);
    list.linear("predictor.down", 1, d_hidden, true);
  }
  bool selects_without_future() const override { return true; }
  bool selective() const override { return true; }
  double share() const override { return capacity; }
};

}  // namespace tessera::nn
