// LSH attention (Reformer): queries are their own keys; tokens are sorted by a hash of them and
// attend inside chunks of the sorted list, so that a document costs O(T log T).
//   k_i = q_i / |q_i|;   bucket = argmax [q R; -q R];   rounds weighted by their sums of
//   exponentials
// Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451. Golden: attention G7.
//
// What a token sees of its past depends on how the whole document hashes: a decoder trains with it
// and reads no future value, but there is no state. The rotations R follow from `seed` and the
// layer's name; those of a released model, from its hash_seed as torch draws them. A position
// scheme by distance alone adds to the scores; hashes do not know it.
#pragma once

#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class RotationSource {
  counter,  // of seed and the layer's name
  torch,    // as torch.randn draws them after torch.manual_seed(seed): the same in every layer
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RotationSource> {
  using R = nn::RotationSource;
  static constexpr std::array names{std::pair{R::counter, "counter"}, std::pair{R::torch, "torch"}};
};

namespace tessera::nn {

struct LshAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t chunk = 64;
  int64_t chunks_before = 1;
  int64_t chunks_after = 0;
  int64_t n_hashes = 1;
  std::vector<int64_t> n_buckets;
  int64_t max_length = 4096;
  int64_t redraw_every = 0;
  int64_t seed = 0;
  RotationSource rotations = RotationSource::counter;
  int64_t pad_to = 0;
  bool same_bucket_only = false;
  bool dedupe = false;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = LshAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("chunk", &C::chunk,
              "tokens of a chunk of the sorted list; shorter documents are "
              "attended as a whole",
              {.min = 1}),
        field("chunks_before", &C::chunks_before, "neighbouring chunks that are seen", {.min = 0}),
        field("chunks_after", &C::chunks_after, "neighbouring chunks that are seen", {.min = 0}),
        field("n_hashes", &C::n_hashes, "rounds of hashing and attending", {.min = 1}),
        field("n_buckets", &C::n_buckets,
              "even factors of the bucket count; empty = from the document's length and max_length",
              {.min = 2}),
        field("max_length", &C::max_length,
              "longest document: above it the derived count never needs a third factor",
              {.min = 1}),
        field("redraw_every", &C::redraw_every,
              "steps of training after which it draws new rotations; 0 = never. Evaluation keeps "
              "the first ones",
              {.min = 0}),
        field("seed", &C::seed, "of the rotations", {.min = 0}),
        field("rotations", &C::rotations, "how they are drawn"),
        field("pad_to", &C::pad_to,
              "longer documents than a chunk are filled up to a multiple of this; 0 = of the chunk",
              {.min = 0}),
        field("same_bucket_only", &C::same_bucket_only,
              "hide tokens in reach that are of another bucket (the paper's formula)"),
        field("dedupe", &C::dedupe, "count a key once that is in reach several times"),
        field("position", &C::position, "what scores gain by distance", {.part = "none"})};
  }
  static spec::Json example(const spec::Scope&, int64_t length) { return {{"max_length", length}}; }
  static spec::Info info() {
    return {.summary = "Attention inside chunks of a list of tokens sorted by hash.",
            .paper =
                "Kitaev, Kaiser, Levskaya: Reformer: The Efficient Transformer, "
                "arXiv:2001.04451",
            .year = 2020,
            .causality = spec::Causality::selection,
            .forms = {},
            .time = spec::Growth::linear_log};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    require_heads_divide(head_dim, n_heads, scope.d_model, scope);
    if (head_dim == 0) head_dim = scope.d_model / n_heads;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  /// Reformer decodes so: a whole pass over the text so far, of which no later token is left out.
  bool selects_without_future() const override { return true; }
};

}  // namespace tessera::nn
