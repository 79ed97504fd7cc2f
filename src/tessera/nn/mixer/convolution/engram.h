// Engram: memory of n-grams. The n-grams of ids that end with a token are hashed to rows of a
// table, whose vectors a gate adds to the stream: knowledge that is looked up, not computed. For n
// = 2 .. ngram and head j of n, over ids i_0 (the token's own), i_1 (before it), ..:
//   row_nj = offset_nj + (XOR_{m<n} i_m a_m) mod p_nj,   e = concat of the rows' vectors, [width]
//   z_s = N_k(W_k e)_s . N_q(H)_s / D^1/2,   g_s = sigmoid(sign(z_s) max(|z_s|, 1e-6)^1/2)
//   u_s = g_s (W_v e),   y = u + silu(conv(N_c(u)))
// H: the S = d_in / d_model streams that the branch reads, y is as wide; N_k, N_q, N_c: RMSNorm of
// each stream with weights of its own; conv: causal, by channel, of d_conv taps that are `dilation`
// tokens apart. p_nj: the primes from `rows` on, taken once by every head of every memory of the
// model, of which `index` is this one's number. a_m: odd numbers below 2^63 / vocab by splitmix64
// of seed + 10007 index.
// State: the inputs of conv that its taps still see. Cheng et al. 2026, arXiv:2601.07372.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/nn/norm/norm_weight.h"
#include "tessera/nn/wide_output.h"

namespace tessera::nn {

/// Where the n-grams of ids lie in a table.
struct NgramHash {
  std::vector<int64_t> factors;  // a_m, one for each id of the longest n-gram
  std::vector<int64_t> sizes;    // p_nj, by n and then by head
  /// The row of every head; ids: a token's own, then those before it.
  void rows(std::span<const int64_t> ids, std::span<int64_t> out) const;
  /// Rows of all heads.
  int64_t total() const;
};

struct EngramConfig final : spec::Config, WideOutput {
  static constexpr int64_t kMostHeads = 4096;  // searching primes takes time
  int64_t width = 0;
  int64_t ngram = 3;
  int64_t heads = 8;
  int64_t rows = 0;
  int64_t table_rows = 0;
  int64_t seed = 0;
  int64_t index = 0;
  int64_t pad = 0;
  bool cut = false;
  int64_t d_conv = 4;
  int64_t dilation = 0;
  bool bias = false;
  double norm_eps = 1e-6;
  NormWeight norm_weight = NormWeight::plain;

  static constexpr auto fields() {
    using C = EngramConfig;
    using spec::field;
    return std::tuple{
        field("width", &C::width, "channels of e, those of all heads together; 0 = d_model",
              {.min = 0}),
        field("ngram", &C::ngram, "ids of the longest n-gram", {.min = 2, .max = kMostHeads}),
        field("heads", &C::heads, "hashes of each n", {.min = 1, .max = kMostHeads}),
        field("rows", &C::rows, "least number of rows of a head; 0 = vocab", {.min = 0}),
        field("table_rows", &C::table_rows,
              "rows of the table, at least those of all heads; 0 = just these", {.min = 0}),
        field("seed", &C::seed, "of the hash", {.min = 0}),
        field("index", &C::index, "number of this memory in the model: each hashes differently",
              {.min = 0, .max = kMostHeads}),
        field("pad", &C::pad, "id that stands for tokens before the document", {.min = 0}),
        field("cut", &C::cut, "whether n-grams reach no further back than to a token `pad`"),
        field("d_conv", &C::d_conv, "taps of the convolution, the present included",
              {.min = 1, .max = 1 << 20}),
        field("dilation", &C::dilation, "tokens from one tap to the next; 0 = ngram",
              {.min = 0, .max = 1 << 20}),
        field("bias", &C::bias, "bias of W_k and W_v"),
        field("norm_eps", &C::norm_eps, "added to the mean squares", {.min = 0}),
        field("norm_weight", &C::norm_weight, "how the weights of the norms enter")};
  }
  static spec::Info info() {
    return {.summary = "Memory of n-grams: vectors of hashed n-grams, gated by the stream.",
            .paper =
                "Cheng et al.: Conditional Memory via Scalable Lookup: A New Axis of Sparsity for "
                "Large Language Models, arXiv:2601.07372",
            .year = 2026,
            .forms = {.parallel = true, .recurrent = true},
            .any_width = true};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  int64_t ids_before() const override { return ngram - 1; }
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// All heads of all n.
  int64_t all_heads() const { return (ngram - 1) * heads; }
  /// Tokens before one that its convolution sees.
  int64_t past() const { return (d_conv - 1) * dilation; }
  static int64_t streams(const spec::Scope& scope) { return scope.input_width() / scope.d_model; }
  NgramHash hash(int64_t vocab) const;
};

}  // namespace tessera::nn
