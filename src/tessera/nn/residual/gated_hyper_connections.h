// Gated hyper-connections: S streams H [S, D] a token, of which every branch reads a mean with a
// gate for each channel of each stream, and adds to each stream with a weight of its own. With
// X_s = N_s(H_s), x = vec(X), D_m [R, S D], U [S D, R], W [S, S D]:
//   g = sigmoid(U silu(D_m x / S)),   u = 1/S sum_s g_s * X_s
//   H'_s = H_s + magnitude sigmoid(W x / S)_s f(u)
// N_s: RMSNorm with weights of the stream. Where the run begins, every H_s = x_ND; where it ends,
// x_ND = u once more, with parameters of its own, and needs no further norm.
// Qwen Team 2026 (Qwen4-Exp), after Zhu et al. 2024, arXiv:2409.19606.
//
// Of "all" a branch reads the streams themselves, concatenated, and what it makes of them is added
// to them: as wide, or d_model wide and added to each. The norm of a branch is N: it has no other.
#pragma once

#include <algorithm>

#include "tessera/nn/norm/norm_weight.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

enum class StreamsRead { gated, all };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::StreamsRead> {
  static constexpr std::array names{std::pair{nn::StreamsRead::gated, "gated"},
                                    std::pair{nn::StreamsRead::all, "all"}};
};

namespace tessera::nn {

struct GatedHyperConnectionsConfig final : ResidualConfig {
  int64_t streams = 4;
  StreamsRead reads = StreamsRead::gated;
  int64_t rank = 0;
  double magnitude = 2;
  double norm_eps = 1e-6;
  NormWeight norm_weight = NormWeight::plain;

  static constexpr auto fields() {
    using C = GatedHyperConnectionsConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("streams", &C::streams, "S", {.min = 1}),
            spec::field("reads", &C::reads,
                        "gated: the branch reads a gated mean of the streams; all: it reads all of "
                        "them concatenated, and is added to them"),
            spec::field("rank", &C::rank,
                        "R, channels between the two matrices of the gates; 0 = d_model / 8",
                        {.min = 0}),
            spec::field("magnitude", &C::magnitude, "greatest weight of the branch in a stream"),
            spec::field("norm_eps", &C::norm_eps, "added to the mean square in N", {.min = 0}),
            spec::field("norm_weight", &C::norm_weight, "how the weights of N enter")},
        output_fields<C>());
  }
  static spec::Info info() {
    return {
        .summary = "Several streams, read by a gate for each channel of each stream (Qwen4-Exp).",
        .paper = "Qwen Team: Qwen4-Exp; Zhu et al.: Hyper-Connections, arXiv:2409.19606",
        .year = 2026,
        .forms = {.recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (rank == 0) rank = std::max<int64_t>(1, scope.d_model / 8);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  void leave_params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<std::string> norms() const override { return {}; }
  bool wants_final_norm() const override { return false; }
  int64_t streams_read() const override { return reads == StreamsRead::all ? streams : 1; }
  std::string carries() const override {
    return "gated hyper-connections " + std::to_string(streams);
  }
};

}  // namespace tessera::nn
