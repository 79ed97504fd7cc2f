// One product and nothing else: y = W x (+ b). Brings a branch's output, or concatenated inputs, to
// the width of the stream (Zamba). Glorioso et al. 2024, arXiv:2405.16712, sec. 2.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct LinearFfnConfig final : spec::Config {
  bool bias = false;

  static constexpr auto fields() {
    return std::tuple{spec::field("bias", &LinearFfnConfig::bias, "b")};
  }
  static spec::Info info() {
    return {.summary = "One product without an activation: a projection between branches.",
            .paper = "Glorioso et al.: Zamba: A Compact 7B SSM Hybrid Model, arXiv:2405.16712",
            .year = 2024,
            .forms = {.recurrent = true},
            .any_width = true};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("out", scope.d_model, scope.input_width(), bias);
  }
};

}  // namespace tessera::nn
