// Memorizing Transformer: attention within a segment, and also to the `top_k` of a memory of
// earlier keys that every query and head finds by search.
//   q, k = unit(W x),   unit(y) = y / sqrt(|y|^2 + 1e-12)
//   o_local = softmax(scale_h q . k_local + bias) v_local
//   o_memory = softmax(scale_h q . k_best) v_best
//   o = g_h o_memory + (1 - g_h) o_local,   g_h = sigmoid(gate_h)
// Wu, Rabe, Hutchins, Szegedy 2022, arXiv:2203.08913.
//
// The memory holds keys and values of the `memory` tokens before the segment, of the same document,
// as they were made: no gradient passes into it. Keys that score alike are taken from the earliest
// on. A query that finds no memory reads its segment alone.
//
// The approximate search scores the keys alone that share a bucket with the query in one of
// `n_hashes` tables (ops/attention/key_search.h): about n_hashes / n_buckets of them and those of
// like direction, and may find fewer than top_k. Around 64 centres the default tables find 97 of
// 100 nearest keys by 16 products for every 100 (ops/attention/key_search_test.cpp holds them to 93
// and 20). The state then holds each key's buckets.
#pragma once

#include "tessera/nn/mixer/attention/segment_config.h"

namespace tessera::nn {

enum class MemoryCombine {
  gate,   // one number per head mixes the two
  joint,  // one softmax over what was found and the segment
};

enum class MemorySearch {
  exact,        // every key is scored
  approximate,  // those in the query's buckets
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::MemorySearch> {
  using S = nn::MemorySearch;
  static constexpr std::array names{std::pair{S::exact, "exact"},
                                    std::pair{S::approximate, "approximate"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::MemoryCombine> {
  using M = nn::MemoryCombine;
  static constexpr std::array names{std::pair{M::gate, "gate"}, std::pair{M::joint, "joint"}};
};

namespace tessera::nn {

struct MemorizingConfig final : SegmentConfig {
  int64_t memory = 8192;
  int64_t top_k = 32;
  MemoryCombine combine = MemoryCombine::gate;
  MemorySearch search = MemorySearch::exact;
  int64_t n_hashes = 8;
  int64_t n_buckets = 64;
  int64_t hash_seed = 0;

  static constexpr auto fields() {
    using C = MemorizingConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("segment", &C::segment, "tokens of a segment", {.min = 1, .required = true}),
        field("mem_len", &C::mem_len,
              "tokens before a segment that its own attention sees; 0 = none", {.min = 0}),
        field("memory", &C::memory, "tokens before a segment that are searched", {.min = 1}),
        field("top_k", &C::top_k, "of them those that a query reads", {.min = 1}),
        field("combine", &C::combine, "how both attentions become one"),
        field("search", &C::search, "how the top_k are found"),
        field("n_hashes", &C::n_hashes, "tables of the approximate search", {.min = 1}),
        field("n_buckets", &C::n_buckets, "buckets of a table, an even number up to 256",
              {.min = 2, .max = kMostBuckets}),
        field("hash_seed", &C::hash_seed, "of the directions of the buckets", {.min = 0}),
        field("position", &C::position, "what the scores within the segment gain", {.part = "t5"}),
        field("dropout", &C::dropout, "probability on the segment's attention weights, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"segment", 128}, {"memory", 256}};
  }
  static spec::Info info() {
    return {.summary =
                "Attention to the own segment and to the nearest keys of a long memory, into "
                "which no gradient passes.",
            .paper = "Wu, Rabe, Hutchins, Szegedy: Memorizing Transformers, arXiv:2203.08913",
            .year = 2022,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  static constexpr int64_t kMostBuckets = 256;  // numbers of a byte
  bool hashes() const { return search == MemorySearch::approximate; }
};

}  // namespace tessera::nn
