// Rules, parameters, state and cost of the Reformer's two attentions.
#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/local_attention.h"
#include "tessera/nn/mixer/attention/lsh_attention.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {
namespace {

void check_padding(int64_t pad_to, int64_t chunk, const spec::Scope& scope) {
  if (pad_to % chunk != 0)
    fail(ErrorKind::spec, scope.path, "pad_to = {} is no multiple of chunk = {}", pad_to, chunk);
}

}  // namespace

void LshAttentionConfig::check(const spec::Scope& scope) const {
  for (const int64_t factor : n_buckets)
    if (factor % 2 != 0)
      fail(ErrorKind::spec, scope.path,
           "n_buckets = [{}]: {} is odd; a bucket and its opposite come in pairs",
           fmt::join(n_buckets, ", "), factor);
  if (!n_buckets.empty() && max_length != LshAttentionConfig().max_length)
    fail(
        ErrorKind::spec, scope.path,
        "max_length = {} with n_buckets, which leave no count to derive from it; leave one of them "
        "out",
        max_length);
  if (position && position.info().place == spec::Place::score_bias &&
      !position.as<PositionConfig>().by_distance())
    fail(ErrorKind::spec, scope.path,
         "position \"{}\" reads contents or places of neighbouring keys, but the keys of a bucket "
         "lie anywhere; use one by distance alone: alibi, t5 or kerple",
         position.type());
  check_padding(pad_to, chunk, scope);
  if (rotations == RotationSource::torch && redraw_every != 0)
    fail(ErrorKind::spec, scope.path,
         "redraw_every = {} with rotations = torch, which are those of one seed; use rotations "
         "\"counter\"",
         redraw_every);
}

void LshAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("qk", n_heads * head_dim, scope.d_model, false);
  list.linear("v", n_heads * head_dim, scope.d_model, false);
  list.linear("o", scope.d_model, n_heads * head_dim, false,
              spec::Init::into_stream(scope.n_layers));
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

double LshAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const int64_t seen = std::min(context, chunk * (chunks_before + 1 + chunks_after));
  return 4.0 * static_cast<double>(n_heads * head_dim * n_hashes) * static_cast<double>(seen);
}

void LocalAttentionConfig::check(const spec::Scope& scope) const {
  if (scope.causal && chunks_after > 0)
    fail(ErrorKind::spec, scope.path,
         "chunks_after = {} needs an encoder: a decoder sees no later chunk; use 0", chunks_after);
  check_padding(pad_to, chunk, scope);
  if (scope.causal && pad_to > 0)
    fail(ErrorKind::spec, scope.path,
         "pad_to = {} needs an encoder: a decoder has no ring of chunks; use 0", pad_to);
}

void LocalAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q);
  list.linear("k", n_heads * head_dim, scope.d_model, bias.k);
  list.linear("v", n_heads * head_dim, scope.d_model, bias.v);
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> LocalAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const int64_t keep = chunk * (chunks_before + 1);
  return spec::packing({{"k", Kind::per_token, {n_heads, head_dim}, keep},
                        {"v", Kind::per_token, {n_heads, head_dim}, keep}});
}

double LocalAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const int64_t seen = std::min(context, chunk * (chunks_before + 1 + chunks_after));
  return 4.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(seen);
}

}  // namespace tessera::nn
