// One product and nothing else: y = W x (+ b). Brings a branch's output, or concatenated inputs, to
// the width of the stream (Zamba). Glorioso et al. 2024, arXiv:2405.16712, sec. 2. As `identity` it
// is y = x: a normed state that several later branches of the layer read (LongCat-Flash's shortcut,
// arXiv:2509.01322, sec. 2.2).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct LinearFfnConfig final : spec::Config {
  bool bias = false;
  bool identity = false;

  static constexpr auto fields() {
    using C = LinearFfnConfig;
    return std::tuple{
        spec::field("bias", &C::bias, "b"),
        spec::field("identity", &C::identity,
                    "whether it is y = x without a product, for branches that later ones read")};
  }
  static spec::Info info() {
    return {.summary = "One product without an activation: a projection between branches.",
            .paper = "Glorioso et al.: Zamba: A Compact 7B SSM Hybrid Model, arXiv:2405.16712",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true},
            .any_width = true};
  }
  void check(const spec::Scope& scope) const override {
    if (!identity) return;
    if (bias) fail(ErrorKind::spec, scope.path, "bias with identity; leave one of them out");
    if (scope.input_width() != scope.d_model)
      fail(ErrorKind::spec, scope.path, "identity: it reads {} channels and adds to {}",
           scope.input_width(), scope.d_model);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (identity) return;
    list.linear("out", scope.d_model, scope.input_width(), bias);
  }
};

}  // namespace tessera::nn
