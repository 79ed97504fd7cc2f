// What every language-model head has: logits = softcap(scale * W h + b).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct HeadConfig : spec::Config {
  double scale = 1;
  double softcap = 0;
  /// Whether the token embedding is the output matrix.
  virtual bool tied() const = 0;

 protected:
  template <class C>
  static constexpr auto common_fields() {
    return std::tuple{
        spec::field<C>("scale", static_cast<double C::*>(&C::scale), "factor on the logits"),
        spec::field<C>("softcap", static_cast<double C::*>(&C::softcap),
                       "c in c * tanh(logits / c); 0 = none", {.min = 0})};
  }
};

}  // namespace tessera::nn
