#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/query_temperature.h"

namespace tessera::nn {

double QueryTemperature::factor(int64_t position) const {
  const int64_t steps = (position + offset) / floor;
  const double grown = 1 + scale * std::log1p(static_cast<double>(steps));
  if (log_length == 0) return grown;
  const double counted = static_cast<double>(std::max<int64_t>(1, position + offset)),
               factor = std::log(counted) / std::log(static_cast<double>(log_length));
  return grown * (log_below ? factor : std::max(1.0, factor));
}

void QueryTemperature::check(const spec::Scope& scope) const {
  const QueryTemperature plain;
  const std::string path = scope.at("temperature").path;
  if (scale == 0 && (floor != plain.floor || (offset != plain.offset && !acts())))
    fail(ErrorKind::spec, path,
         "floor and offset without a scale: nothing grows; set scale, or leave them out");
  if (log_length == 1)
    fail(ErrorKind::spec, path, "log_length = 1; expected at least 2, whose logarithm is not 0");
  if (log_below && log_length == 0)
    fail(ErrorKind::spec, path, "log_below without a log_length; set it, or leave log_below out");
}

}  // namespace tessera::nn
