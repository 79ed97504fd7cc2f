// Convolutional positions: a wide grouped convolution over the embeddings encodes each token's
// position among its neighbours.
//   x_t += gelu(bias + sum_k W_k x_(t + k - left))
// An encoder sees both sides (left = kernel / 2, as wav2vec 2.0, whose even kernel drops the last
// frame), a decoder the past alone (left = kernel - 1). Outside of a document stand zeros. The
// weight is the plain one: a weight-normed checkpoint is folded when it is converted.
// Baevski et al. 2020, arXiv:2006.11477; Mohamed, Okhonko, Zettlemoyer 2019, arXiv:1904.11660.
#pragma once

#include <cmath>

#include "tessera/nn/mixer/convolution/grouped_conv_decl.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct ConvolutionalConfig final : PositionConfig {
  int64_t kernel = 128;
  int64_t groups = 16;

  static constexpr auto fields() {
    using C = ConvolutionalConfig;
    return std::tuple{
        spec::field("kernel", &C::kernel, "taps of the convolution", {.min = 1}),
        spec::field("groups", &C::groups, "groups of channels, divides d_model", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "A grouped convolution of the embeddings, added to them.",
            .paper =
                "Baevski et al.: wav2vec 2.0: A Framework for Self-Supervised Learning of Speech "
                "Representations, arXiv:2006.11477",
            .year = 2020,
            .forms = {.recurrent = true},
            .place = spec::Place::embedding};
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::embedding, "convolutional", scope, "put it into \"embed\"");
    if (scope.width % groups != 0)
      fail(ErrorKind::spec, scope.path, "groups = {} does not divide d_model = {}", groups,
           scope.width);
  }
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override {
    return grouped_conv_state(scope, scope.width, kernel);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    // as wav2vec 2.0: 2 / sqrt(kernel * width)
    const double deviation =
        2 / std::sqrt(static_cast<double>(kernel) * static_cast<double>(scope.width));
    const spec::Init none = spec::Init::constant(0);
    declare_grouped_conv(list, {scope.width, groups, kernel}, spec::Init::normal(deviation), &none);
  }
};

}  // namespace tessera::nn
