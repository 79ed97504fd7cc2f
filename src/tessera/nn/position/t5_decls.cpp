#include "tessera/nn/position/t5.h"

#include <algorithm>
#include <cmath>

namespace tessera::nn {

void T5Config::check(const spec::Scope& scope) const {
  require_scores("t5", scope);
  check_share(share, scope);
  if (!scope.causal && (n_buckets < 4 || n_buckets % 2 != 0))
    fail(ErrorKind::spec, scope.path,
         "n_buckets = {}; expected an even number of at least 4: an encoder has a half for each "
         "direction",
         n_buckets);
  const int64_t exact = (scope.causal ? n_buckets : n_buckets / 2) / 2;
  if (max_distance <= exact)
    fail(ErrorKind::spec, scope.path,
         "max_distance = {} lies within the {} distances that have their own bucket; expected more",
         max_distance, exact);
}

void T5Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, share, [&](spec::ParamList& to) {
    to.add({"weight",
            {n_buckets, scope.n_heads},
            spec::Init::normal(1 / std::sqrt(static_cast<double>(scope.d_model))),
            spec::ParamKind::embedding,
            {spec::Role::position, spec::Role::head}});
  });
}

int64_t T5Config::bucket(int64_t distance, bool causal) const {
  const int64_t buckets = causal ? n_buckets : n_buckets / 2;
  const int64_t offset = !causal && distance > 0 ? buckets : 0;
  const int64_t d = causal ? std::max<int64_t>(-distance, 0) : std::abs(distance);
  const int64_t exact = buckets / 2;
  if (d < exact) return offset + d;
  // in float32, as checkpoints were trained with
  const auto e = static_cast<float>(exact);
  const float part = std::log(static_cast<float>(d) / e) /
                     static_cast<float>(std::log(static_cast<double>(max_distance) / e));
  const auto step = static_cast<int64_t>(part * static_cast<float>(buckets - exact));
  return offset + std::min(buckets - 1, exact + step);
}

}  // namespace tessera::nn
