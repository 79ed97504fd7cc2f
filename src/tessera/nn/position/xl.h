// Transformer-XL's relative positions: sinusoids of the distance, projected to keys, and two
// learned queries that ask everywhere alike, for content (u) and for position (w).
//   s_ij = scale [(q_i + u) . k_j + (q_i + w) . W_r R_(i-j)],   R_r the sinusoid of r, width
//   d_model
// A call projects the sinusoids of all distances that it can meet, with a state only those that
// no call before has met; "clamp" bounds them.
// Both directions: an encoder reads R of negative distances (XLNet). Conformer's table is
// interleaved. Dai et al. 2019, arXiv:1901.02860; Yang et al. 2019, arXiv:1906.08237. Golden:
// attention 10.
#pragma once

#include "tessera/nn/position/sinusoidal.h"

namespace tessera::nn {

struct XlConfig final : PositionConfig {
  double theta = 10000;
  SinusoidLayout layout = SinusoidLayout::halves;
  int64_t clamp = 0;
  std::string share;

  bool takes_scale() const override { return true; }
  static constexpr auto fields() {
    using C = XlConfig;
    return std::tuple{
        spec::field("theta", &C::theta, "base of the frequencies", {.min = 1}),
        spec::field("layout", &C::layout, "sin and cos alternate, or sines first"),
        spec::field("clamp", &C::clamp, "greater distances count as this one; 0 = none",
                    {.min = 0}),
        spec::field("share", &C::share, "layers with the same id share u and w; \"\" = own")};
  }
  static spec::Info info() {
    return {.summary = "Scores gain projected sinusoids of the distance and two global queries.",
            .paper =
                "Dai et al.: Transformer-XL: Attentive Language Models Beyond a Fixed-Length "
                "Context, arXiv:1901.02860",
            .year = 2019,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  void check(const spec::Scope& scope) const override {
    require_scores("xl", scope);
    check_share(share, scope);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
