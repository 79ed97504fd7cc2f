// Transformer-XL: segments of a document one after another, each attending to itself and to the
// inputs that the same layer had for the `mem_len` tokens before it.
//   k, v = W [memory; x],   s_ij = scale [(q_i + u) . k_j + (q_i + w) . W_r R_(i-j)],   j <= i
// Dai et al. 2019, arXiv:1901.02860. Golden: attention G9.
//
// Gradients stop at the memory: they reach W through it, not the inputs it was made of, as in the
// paper. Inputs are stored, and projected again by the current weights where gradients are
// recorded, and their keys and values, for inference.
#pragma once

#include "tessera/nn/mixer/attention/segment_config.h"

namespace tessera::nn {

enum class MemoryStart {
  empty,  // the first segment has no memory (the paper's code)
  zeros,  // rows of zeros stand before the first token and are attended to (the port of the hub)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::MemoryStart> {
  using M = nn::MemoryStart;
  static constexpr std::array names{std::pair{M::empty, "empty"}, std::pair{M::zeros, "zeros"}};
};

namespace tessera::nn {

struct TransformerXlConfig final : SegmentConfig {
  MemoryStart init_mem = MemoryStart::empty;
  bool same_length = false;

  static constexpr auto fields() {
    using C = TransformerXlConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("segment", &C::segment, "tokens of a segment", {.min = 1, .required = true}),
        field("mem_len", &C::mem_len, "tokens before a segment that it sees; 0 = none",
              {.min = 0, .required = true}),
        field("init_mem", &C::init_mem, "what stands before the first token of a document"),
        field("same_length", &C::same_length,
              "every query sees mem_len keys, its own included, and no more"),
        field("position", &C::position, "what the scores gain", {.part = "xl"}),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"segment", 128}, {"mem_len", 128}};
  }
  static spec::Info info() {
    return {.summary =
                "Attention to the own segment and to a memory of the ones before, at which "
                "gradients stop.",
            .paper =
                "Dai et al.: Transformer-XL: Attentive Language Models Beyond a Fixed-Length "
                "Context, arXiv:1901.02860",
            .year = 2019,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    declare(list, scope);
  }
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override {
    return kept_inputs(scope, mem_len + segment);
  }
};

}  // namespace tessera::nn
