// gated_square: a feed-forward layer whose gate is a squared ReLU.
//   y = W_down(relu(W_gate x)^2 * W_up x)
#pragma once

#include "tessera/spec/fields.h"

namespace gated_square_plugin {

namespace spec = tessera::spec;

/// The options in specs, {"type": "gated_square", "d_hidden": 256}, and what follows from them.
struct GatedSquareConfig final : spec::Config {
  int64_t d_hidden = 0;

  static constexpr auto fields() {
    using C = GatedSquareConfig;
    return std::tuple{spec::field("d_hidden", &C::d_hidden,
                                  "hidden width, or a rule such as \"8/3, multiple of 256\" of "
                                  "d_model",
                                  {.min = 1, .required = true, .width = true})};
  }
  static spec::Info info() {
    return {.summary = "A feed-forward layer whose gate is a squared ReLU.",
            .paper = "authors, title, arXiv number",
            .year = 2026,
            .forms = {.recurrent = true},
            .any_width = true};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace gated_square_plugin
