// How a run multiplies weights in blocks: the same two flags for every verb that computes with a
// loaded model as fast as it may.
#pragma once

#include <algorithm>

#include "tessera/cli/cli.h"
#include "tessera/model/model.h"

namespace tessera::cli {

struct ProductFlags {
  bool exact = false, fast = false;

  void add(CLI::App& app) {
    auto* float32 = app.add_flag("--exact", exact,
                                 "multiply weights in blocks (Q4_1, Q8_0, ...) by float32 numbers "
                                 "as they are; default: by numbers rounded to 15 bits");
    app.add_flag("--fast", fast, "by numbers rounded to 8 bits: faster, and less like the model")
        ->excludes(float32);
  }
  kernels::Arithmetic arithmetic() const {
    return exact  ? kernels::Arithmetic::exact
           : fast ? kernels::Arithmetic::one_digit
                  : kernels::Arithmetic::two_digits;
  }
  /// For reports: "exact", "two_digits", "one_digit".
  const char* name() const { return exact ? "exact" : fast ? "one_digit" : "two_digits"; }
  /// Refuses --fast where it would change nothing.
  void check(const model::Model& model) const {
    const auto& weights = model.weights().all();
    if (fast && std::none_of(weights.begin(), weights.end(), [](const auto& weight) {
          return weight.second != nullptr && kernels::has_codes(weight.second->dtype());
        }))
      fail(ErrorKind::usage, "fast",
           "no weight of this model is in blocks, and others are multiplied in float32; expected a "
           "quantised model");
  }
};

}  // namespace tessera::cli
