// Alternating updates: S streams H [S, D] a token, of which each layer computes one, the active one
// a; the others follow it by learned coefficients. Of "layer", with its branches f_1, f_2, ...:
//   P_s = H_s + sum_t (W_p m(H_a))_st H_t         prediction of all streams
//   y_0 = P_a,  y_j = y_{j-1} + N2(f_j(N1(y_{j-1})))                the branches, one after another
//   C_s = P_s + (1 + (W_c m(y))_s) (y - P_a)      correction of all streams
//   m(x) = tanh(W_r N(x) / D)                     [S]
// Of "others" the branch reads g * H_a, g learned where there is a correct_scale, and what it makes
// is added to all streams but the first: H_s <- H_s + N2(f(g * H_a)), s > 0.
// Baykal et al. 2023, arXiv:2301.13310, as Gemma 3n has it.
//
// With laurel_rank the first branch has a learned residual (LAuReL): n = N1(y_0),
//   y_1 = (y_0 + N2(f_1(n)) + n + N3(B A n)) / 2^1/2      Menghani et al. 2024, arXiv:2411.07501
//
// Where a run of such residuals begins, H_0 = x and H_s = U_s x, as long as x; where it ends, x is
// the mean of H_0 and the V_s H_s, each as long as H_0.
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

enum class AltUpOf { layer, others };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::AltUpOf> {
  static constexpr std::array names{std::pair{nn::AltUpOf::layer, "layer"},
                                    std::pair{nn::AltUpOf::others, "others"}};
};

namespace tessera::nn {

struct AltUpConfig final : ResidualConfig {
  AltUpOf of = AltUpOf::layer;
  int64_t streams = 4;
  int64_t active = 0;
  double clip = 0;
  bool correct_scale = false;
  int64_t laurel_rank = 0;
  spec::Part<spec::Slot::norm> norm;

  static constexpr auto fields() {
    using C = AltUpConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("of", &C::of,
                        "layer: the branches compute the active stream, which corrects all; others: "
                        "a branch that reads the active stream is added to all but the first"),
            spec::field("streams", &C::streams, "S", {.min = 2}),
            spec::field("active", &C::active, "a, from 0", {.min = 0}),
            spec::field("clip", &C::clip,
                        "of layer: in training W_p and W_c are clamped to [-clip, clip]; 0 = they "
                        "are not",
                        {.min = 0}),
            spec::field("correct_scale", &C::correct_scale,
                        "of others: whether learned factors of channels multiply what the branch "
                        "reads"),
            spec::field("laurel_rank", &C::laurel_rank,
                        "of layer: rank of the first branch's learned residual (LAuReL); 0 = none",
                        {.min = 0}),
            spec::field("norm", &C::norm, "N and N3; null = rms_norm")},
        output_fields<C>());
  }
  static spec::Info info() {
    return {
        .summary = "Alternating updates (AltUp): several streams, of which a layer computes one.",
        .paper =
            "Baykal et al.: Alternating Updates for Efficient Transformers, arXiv:2301.13310; "
            "Menghani et al.: LAuReL, arXiv:2411.07501",
        .year = 2023,
        .forms = {.recurrent = true, .recorded = true}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = scope.d_model;
    scope.of_batch = false;
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void group_params(spec::ParamList& list, const spec::Scope& scope) const override;
  void enter_params(spec::ParamList& list, const spec::Scope& scope) const override;
  void leave_params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<std::string> norms() const override {
    return of == AltUpOf::layer ? std::vector<std::string>{"norm", "post_norm"}
                                : std::vector<std::string>{"norm"};
  }
  bool joins_branches() const override { return of == AltUpOf::layer; }
  bool takes_inputs() const override { return of == AltUpOf::others; }
  std::string carries() const override { return "altup " + std::to_string(streams); }
};

}  // namespace tessera::nn
