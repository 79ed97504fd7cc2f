#include "tessera/nn/mixer/attention/memorizing.h"

#include <algorithm>

namespace tessera::nn {

void MemorizingConfig::check(const spec::Scope& scope) const {
  SegmentConfig::check(scope);
  if (combine == MemoryCombine::joint && dropout > 0)
    fail(ErrorKind::spec, scope.path,
         "dropout = {} acts on the weights of the segment's own softmax; expected 0 with combine "
         "\"joint\"",
         dropout);
  if (top_k > memory)
    fail(ErrorKind::spec, scope.path, "top_k = {} of memory = {} entries; expected at most as many",
         top_k, memory);
  const MemorizingConfig usual;
  if (!hashes() &&
      (n_hashes != usual.n_hashes || n_buckets != usual.n_buckets || hash_seed != usual.hash_seed))
    fail(ErrorKind::spec, scope.path,
         "n_hashes, n_buckets and hash_seed are of the approximate search; set search "
         "\"approximate\", or leave them out");
  if (n_buckets % 2 != 0)
    fail(ErrorKind::spec, scope.path, "n_buckets = {}; expected an even number", n_buckets);
}

void MemorizingConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, scope);
  list.add({"scale",
            {n_heads},
            spec::Init::constant(1),
            spec::ParamKind::structural,
            {spec::Role::head}});
  list.add_if(combine == MemoryCombine::gate, {"gate",
                                               {n_heads},
                                               spec::Init::constant(0),
                                               spec::ParamKind::structural,
                                               {spec::Role::head}});
}

std::vector<spec::StateDecl> MemorizingConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const int64_t keep = std::max(memory, mem_len) + segment;
  std::vector<spec::StateDecl> out = {{"k", Kind::per_token, {n_heads, head_dim}, keep},
                                      {"v", Kind::per_token, {n_heads, head_dim}, keep}};
  if (hashes()) out.push_back({"buckets", Kind::per_token, {n_heads, n_hashes}, keep});
  return out;
}

double MemorizingConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const double width = static_cast<double>(n_heads * head_dim);
  const auto held = static_cast<double>(std::min(context, memory));
  const auto tables = static_cast<double>(n_hashes), buckets = static_cast<double>(n_buckets);
  // keys that are scored, and half a table's buckets as directions for a query and a key
  const double search = hashes() ? 2.0 * width * held * std::min(1.0, tables / buckets) +
                                       2.0 * width * tables * buckets
                                 : 2.0 * width * held;
  return SegmentConfig::extra_flops(scope, context) + search +
         4.0 * width * static_cast<double>(std::min(context, top_k));
}

}  // namespace tessera::nn
