#include "tessera/nn/mixer/attention/score_scale.h"

#include <cmath>

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

void ScoreScaleConfig::check_scale(const spec::Scope& scope, const spec::AnyPart& position) const {
  if (scale == ScoreScale::rsqrt_of && scale_value <= 0)
    fail(ErrorKind::spec, scope.path, "scale_value = {}; expected more than 0 for scale rsqrt_of",
         scale_value);
  const bool takes_value =
      learns_scale() || scale == ScoreScale::value || scale == ScoreScale::rsqrt_of;
  if (scale_value != 1 && !takes_value)
    fail(ErrorKind::spec, scope.path,
         "scale_value = {} with scale {}, which takes no number; set scale to value, or leave it "
         "out",
         scale_value, spec::enum_name(scale));
  if (scale_on == ScaleOn::logits) return;
  if (scale == ScoreScale::one || learns_scale())
    fail(ErrorKind::spec, scope.path, "scale_on query with scale {}: {}; leave scale_on out",
         spec::enum_name(scale),
         scale == ScoreScale::one ? "there is no factor"
                                  : "a learned factor is always on the queries");
  if (position && position.as<PositionConfig>().takes_scale())
    fail(ErrorKind::spec, scope.path,
         "scale_on query, but what position \"{}\" adds takes the factor on the scores; use "
         "scale_on logits",
         position.type());
}

void ScoreScaleConfig::declare_scale(spec::ParamList& list, int64_t n_heads) const {
  if (learns_scale())
    list.add({"scale",
              {scale == ScoreScale::learned ? 1 : n_heads},
              spec::Init::constant(scale_value),
              spec::ParamKind::structural});
}

double ScoreScaleConfig::score_scale(int64_t head_dim, int64_t layer) const {
  const double rsqrt = 1 / std::sqrt(static_cast<double>(head_dim));
  switch (scale) {
    case ScoreScale::rsqrt_head_dim:
      return rsqrt;
    case ScoreScale::one:
    case ScoreScale::learned:
    case ScoreScale::learned_headwise:
      return 1;
    case ScoreScale::value:
      return scale_value;
    case ScoreScale::rsqrt_of:
      return 1 / std::sqrt(scale_value);
    case ScoreScale::inverse_layer:
      return rsqrt / static_cast<double>(layer + 1);
  }
  return rsqrt;
}

}  // namespace tessera::nn
