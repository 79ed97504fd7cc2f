#include "tessera/nn/mixer/attention/compressive.h"

#include <algorithm>
#include <cmath>

namespace tessera::nn {

void CompressiveConfig::check(const spec::Scope& scope) const {
  SegmentConfig::check(scope);
  if (by_place())
    fail(ErrorKind::spec, scope.path,
         "compressed slots have no place in the document, by which {} adds to the scores; use a "
         "position by distance such as xl",
         position.type());
  if (dilation > 1 && compression != Compression::dilated_conv)
    fail(ErrorKind::spec, scope.path,
         "dilation = {} without compression dilated_conv; set it, or leave dilation out", dilation);
  const CompressiveConfig usual;
  if (n_compressed == 0 && (rate != usual.rate || compression != usual.compression ||
                            distance != usual.distance || reconstruction != usual.reconstruction))
    fail(ErrorKind::spec, scope.path,
         "rate, compression, distance and reconstruction are of a compressed memory, and "
         "n_compressed = 0; give it slots, or leave them out");
  if (reconstruction != usual.reconstruction && !learns())
    fail(ErrorKind::spec, scope.path,
         "reconstruction = {} with compression {}, which has nothing to learn; leave it out",
         reconstruction, spec::enum_name(compression));
  if (distance == SlotDistance::scaled && position.as<PositionConfig>().adds_values())
    fail(ErrorKind::spec, scope.path,
         "{} adds to the values, which slots at scaled distances cannot; set its \"values\" to "
         "false, or \"distance\" to \"index\"",
         position.type());
}

void CompressiveConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, scope);
  if (!learns()) return list.without("compress.weight");
  const double bound = 1 / std::sqrt(static_cast<double>(rate * scope.d_model));
  list.linear("compress", scope.d_model, rate * scope.d_model, true,
              spec::Init::uniform(-bound, bound));
}

std::vector<spec::StateDecl> CompressiveConfig::state(const spec::Scope& scope) const {
  // a block is complete `rate` tokens after it began, and seen once it has left the memory
  std::vector<spec::StateDecl> out = kept_inputs(scope, mem_len + segment + rate + lead());
  if (n_compressed == 0) return out;
  const int64_t blocks = n_compressed + (mem_len + segment) / rate + 2;
  for (spec::StateDecl decl : kept_inputs(scope, blocks)) {
    decl.name += "_block";
    decl.every = rate;
    out.push_back(decl);
  }
  return out;
}

double CompressiveConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const int64_t beyond = std::max<int64_t>(0, context - SegmentConfig::reach()) / rate;
  return SegmentConfig::extra_flops(scope, context) +
         4.0 * static_cast<double>(n_heads * head_dim) *
             static_cast<double>(std::min(beyond, n_compressed));
}

}  // namespace tessera::nn
