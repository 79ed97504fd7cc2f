#include "tessera/nn/mixer/attention/lsh_attention.h"

#include <algorithm>

#include "tessera/nn/mixer/attention/chunk_padding.h"

namespace tessera::nn {

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
  list.linear("v", n_heads * head_dim, scope.d_model, false, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, false,
              spec::Init::into_stream(scope.n_layers));
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

double LshAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const int64_t seen = std::min(context, chunk * (chunks_before + 1 + chunks_after));
  return 4.0 * static_cast<double>(n_heads * head_dim * n_hashes) * static_cast<double>(seen);
}

}  // namespace tessera::nn
