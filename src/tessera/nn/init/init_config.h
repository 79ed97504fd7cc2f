// What an initialisation is: values of the matrices that a model's products read. What a mechanism
// draws by a formula of its own (Init::Use::own: decays, gates, norms, biases) stays.
#pragma once

#include <cmath>

#include "tessera/spec/fields.h"

namespace tessera::nn {

/// The stack that a parameter belongs to.
struct InitSite {
  int64_t d_model = 0;
  int64_t n_layers = 1;
  int64_t encoder_layers = 0, decoder_layers = 0;  // of a pair, else 0
  bool of_encoder = false;                         // of a pair
};

struct InitConfig : spec::Config {
  /// Of a matrix whose use is not `own`.
  virtual spec::Init draw(const spec::ParamDecl& decl, const InitSite& site) const = 0;
  /// Factor on the learning rate of a parameter, under optimizers whose steps have the size of the
  /// rate (Adam).
  virtual double lr_factor(const spec::ParamDecl&, const InitSite&) const { return 1; }
  /// Throws Error(spec) where logits are made in a way that it cannot hold for.
  virtual void check_head(bool /*tied*/, double /*scale*/, const spec::Scope&) const {}
};

/// Numbers that make one output, and outputs that one number is part of; of every expert alone.
struct Fans {
  double in, out;
  explicit Fans(const spec::ParamDecl& decl) {
    const auto size = [&](int axis) {
      return static_cast<double>(decl.shape[static_cast<size_t>(axis)]);
    };
    const int last = static_cast<int>(decl.shape.size()) - 1;
    const int in_axis = decl.axis_of(spec::Role::in);
    in = size(in_axis >= 0 ? in_axis : last);
    int out_axis = decl.axis_of(spec::Role::out);
    if (out_axis < 0) out_axis = decl.axis_of(spec::Role::vocabulary);
    out = size(out_axis >= 0 ? out_axis : std::max(0, last - 1));
  }
};

}  // namespace tessera::nn
