// Adafactor: second moments of matrices as the product of their rows' and columns' means.
// Torch-free, float32. Shazeer, Stern 2018, arXiv:1804.04235. Per matrix of the last two
// dimensions; s = g^2, c = t^-decay_power:
//   R = (1 - c) R + c rowmean s;  K = (1 - c) K + c colmean s;  V = R K^T / mean R
//   U = g / sqrt(V);  U = a U / max(1, rms(U) / clip);  w = w - U
// For parameters of one dimension, V itself is stored. Two forms:
//   torch         a = max(smallest_rms, rms(w)) min(lr, 1 / sqrt(t));  w = (1 - lr wd) w first;
//                 mean R and sqrt(V) are at least the machine's eps of float32
//   transformers  a = lr max(smallest_rms, rms(w)), or lr;  s = g^2 + 1e-30;  w = (1 - a wd) w;
//                 with beta1 a moment M = beta1 M + (1 - beta1) U is taken from w in place of U
#pragma once

#include <functional>

#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

struct AdafactorSettings {
  bool torch_form = true;
  double decay_power = 0.8, clip = 1, smallest_rms = 1e-3, beta1 = 0;
  bool scale_parameter = true;
};

class Adafactor final : public UpdateRule {
 public:
  Adafactor(std::vector<ParameterInfo> slots, AdafactorSettings settings);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  struct ParameterState {
    std::vector<float> rows, columns;  // of matrices
    std::vector<float> whole;          // of other parameters
    std::vector<float> moment;
  };
  struct Factors;
  void gather(const ParameterInfo& slot,
              ParameterState& kept,
              const Factors& f,
              const float* g) const;
  /// Calls `body(row, U of it)` for every row; the result does not depend on the number of threads.
  void over_rows(const ParameterInfo& slot,
                 const ParameterState& kept,
                 const Factors& f,
                 const float* g,
                 const std::function<void(int64_t row, std::span<const float> u)>& body) const;

  std::vector<ParameterInfo> slots_;
  AdafactorSettings settings_;
  std::vector<ParameterState> kept_;
};

}  // namespace tessera::train
