// What the tests of linear recurrences share: a layer with all its weights given, and the state of
// one head stepped by hand.
#pragma once

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn {

/// A mixer with exactly the given weights in layer `layer` of `n_layers`.
struct Layer {
  spec::Json part;
  Values values;
  int64_t layer = 0, n_layers = 1;
  bool causal = true;

  MixerUnderTest of_width(int64_t d_model) const {
    MixerUnderTest mixer(part, d_model, causal);
    mixer.scope.layer = mixer.scope.earlier = layer, mixer.scope.n_layers = n_layers;
    mixer.read();
    mixer.values = values;
    mixer.expect_all_given();
    return mixer;
  }
  Tensor run(const Tensor& x_TD, at::ScalarType type) const {
    return of_width(x_TD.size(1)).run(x_TD, type);
  }
  void expect(const Tensor& x_TD,
              const Tensor& want,
              double tolerance,
              const char* what = "") const {
    of_width(x_TD.size(1)).expect(x_TD, want, tolerance, what);
  }
};

/// S_t = d o S + k v^T, or with the delta rule or the RWKV-7 removal, on one head's rows.
struct Cell {
  Tensor state;  // [K, V]
  Cell(int64_t k, int64_t v) : state(at::zeros({k, v}, at::kDouble)) {}
  void decay(const Tensor& d_K) { state = d_K.unsqueeze(1) * state; }
  void write(const Tensor& k, const Tensor& v) { state = state + at::outer(k, v); }
  Tensor read(const Tensor& q) const { return at::mv(state.t(), q); }
};

}  // namespace tessera::nn
