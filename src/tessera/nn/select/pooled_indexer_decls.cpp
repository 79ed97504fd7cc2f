#include "tessera/nn/select/pooled_indexer.h"

namespace tessera::nn {

void PooledIndexerConfig::check(const spec::Scope& scope) const {
  check_rotation(scope);
  if (constexpr int64_t kMost = int64_t{1} << 31; size >= kMost || top_k >= kMost / size)
    fail(ErrorKind::spec, scope.path, "top_k = {} blocks of {} keys; expected less than 2^31 keys",
         top_k, size);
}

std::vector<spec::StateDecl> PooledIndexerConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  // all bits: rounded ones would choose other blocks
  std::vector<spec::StateDecl> decls{
      {.name = "index_k", .kind = Kind::per_token, .shape = {head_dim}, .every = size}};
  if (size > 1)
    decls.push_back(
        {.name = "index_raw", .kind = Kind::per_token, .shape = {head_dim}, .keep = size - 1});
  return decls;
}

double PooledIndexerConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 2.0 * static_cast<double>(n_heads * head_dim) *
         (static_cast<double>(context) / static_cast<double>(size));
}

}  // namespace tessera::nn
