// Gated attention unit (GAU): one head without a softmax, whose output gates a wide hidden layer;
// it takes the place of attention and of the feed-forward layer.
//   [U, V, Z] = silu(W_in x);  q = Z gamma_1 + beta_1,  k = Z gamma_2 + beta_2
//   A = relu(q k^T / n + b)^2;  y = W_out (U o A V)
// b is what a position scheme adds, whose factor on the scores is 1 / n. A penalty such as alibi's
// takes weights to 0 at once, since scores are small: a learned b (t5) suits relu2 better. With
// relu2 a new unit adds less than float32 sees, since the published gamma, N(0, 0.02^2), enters the
// weights to the fourth power.
// Hua et al. 2022, arXiv:2202.10447, sec. 2. Golden: attention G6, mixers 11.1.
#pragma once

#include "tessera/nn/position/position_config.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class GauWeights {
  relu2,    // max(s / n, 0)^2
  laplace,  // a smooth and bounded form of it
  softmax,  // softmax(s / sqrt(d_key)): GAU-alpha; the divisor has no part in it
};
enum class GauDivisor {
  count,       // the keys that a query sees: i + 1 in a decoder
  max_length,  // the number `max_length`
  length,      // the document's length: encoders only
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::GauWeights> {
  using W = nn::GauWeights;
  static constexpr std::array names{std::pair{W::relu2, "relu2"}, std::pair{W::laplace, "laplace"},
                                    std::pair{W::softmax, "softmax"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::GauDivisor> {
  using D = nn::GauDivisor;
  static constexpr std::array names{std::pair{D::count, "count"},
                                    std::pair{D::max_length, "max_length"},
                                    std::pair{D::length, "length"}};
};

namespace tessera::nn {

struct GauConfig final : spec::Config {
  int64_t d_hidden = 0;
  int64_t d_key = 128;
  GauWeights weights = GauWeights::relu2;
  GauDivisor divisor = GauDivisor::count;
  int64_t max_length = 512;
  spec::Part<spec::Slot::position> position;
  double dropout = 0;

  static constexpr auto fields() {
    using C = GauConfig;
    using spec::field;
    return std::tuple{
        field("d_hidden", &C::d_hidden, "e, width of U and V; 0 = 2 d_model",
              {.min = 0, .width = true}),
        field("d_key", &C::d_key, "s, width of queries and keys", {.min = 1}),
        field("weights", &C::weights,
              "what a score becomes; new weights make scores near 0 (gamma is drawn with standard "
              "deviation 0.02, as published, and n divides), whose squares are below the rounding "
              "of the stream: under relu2 the unit adds nothing until it has learned to; laplace "
              "and softmax begin above 0"),
        field("divisor", &C::divisor, "n"),
        field("max_length", &C::max_length, "the number that divisor max_length takes", {.min = 1}),
        field("position", &C::position, "how order enters", {.part = "none"}),
        field("dropout", &C::dropout, "probability on the weights of softmax, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {.summary = "One head without a softmax that gates a wide hidden layer.",
            .paper = "Hua et al.: Transformer Quality in Linear Time, arXiv:2202.10447",
            .year = 2022,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = d_key;
    scope.n_heads = 1;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (d_hidden == 0) d_hidden = 2 * scope.d_model;
  }
  void check(const spec::Scope& scope) const override;
  /// Whether n differs from query to query.
  bool grows(bool causal) const {
    return causal && divisor == GauDivisor::count && weights != GauWeights::softmax;
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

/// The projections and copies of a unit, shared with flash_gau.
void gau_params(
    spec::ParamList& list, const spec::Scope& scope, int64_t hidden, int64_t key, int64_t copies);
/// Throws Error(spec) for a position that adds to values, which have another width than keys here.
void refuse_value_position(const spec::AnyPart& position, const spec::Scope& scope);

}  // namespace tessera::nn
