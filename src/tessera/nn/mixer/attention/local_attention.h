// Local attention in chunks (Reformer): a token sees its own chunk and its neighbours, counted from
// the document's beginning; in a decoder no later token. In an encoder the neighbourhood closes to
// a ring: the first chunk sees the last one.
// Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

struct LocalAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t chunk = 64;
  int64_t chunks_before = 1;
  int64_t chunks_after = 0;
  int64_t pad_to = 0;
  AttentionBias bias;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = LocalAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("chunk", &C::chunk, "tokens of a chunk", {.min = 1}),
        field("chunks_before", &C::chunks_before, "earlier chunks that are seen", {.min = 0}),
        field("chunks_after", &C::chunks_after, "later chunks that are seen, in an encoder",
              {.min = 0}),
        field("pad_to", &C::pad_to,
              "longer documents than a chunk close to a ring at a multiple of this, in an encoder; "
              "0 = of the chunk",
              {.min = 0}),
        field("bias", &C::bias, "which projections have a bias"),
        field("position", &C::position, "how order enters", {.part = "none"})};
  }
  static spec::Info info() {
    return {.summary = "Attention to the own chunk of the document and its neighbours.",
            .paper =
                "Kitaev, Kaiser, Levskaya: Reformer: The Efficient Transformer, "
                "arXiv:2001.04451",
            .year = 2020,
            .forms = {.recurrent = true}};
  }
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    require_heads_divide(head_dim, n_heads, scope.d_model, scope);
    head_dim = width_of_head(scope);
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
