#include "tessera/nn/position/m_rope.h"

#include <algorithm>
#include <numeric>

namespace tessera::nn {

void MRopeConfig::complete(const spec::Scope& scope) {
  if (!sections.empty()) return;
  // 16, 24, 24 of 64 pairs, or 24, 20, 20: those of Qwen2-VL and Qwen3-VL
  const int64_t pairs = scope.turned() / 2,
                side = arrangement == MRopeSections::chunked ? 3 * pairs / 8 : 5 * pairs / 16;
  sections = {pairs - 2 * side, side, side};
}

void MRopeConfig::check(const spec::Scope& scope) const {
  require_place(spec::Place::rotation, "m_rope", scope, kRotationRemedy);
  require_pairs(scope);
  if (sections.size() != 3 ||
      std::any_of(sections.begin(), sections.end(),
                  [&](int64_t n) { return n < 0 || n > scope.turned() / 2; }) ||
      std::accumulate(sections.begin(), sections.end(), int64_t{0}) != scope.turned() / 2)
    fail(ErrorKind::spec, scope.at("sections").path,
         "found [{}]; expected three numbers of pairs, in all head_dim / 2 = {}",
         fmt::join(sections, ", "), scope.turned() / 2);
  if (arrangement == MRopeSections::interleaved)
    for (const size_t axis : {1, 2})
      if (3 * sections[axis] - 3 + static_cast<int64_t>(axis) >= scope.turned() / 2)
        fail(ErrorKind::spec, scope.at("sections").path,
             "found [{}]; interleaved, height and width have at most a third of the {} pairs each",
             fmt::join(sections, ", "), scope.turned() / 2);
}

std::vector<int64_t> MRopeConfig::axis_of_pair() const {
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < sections.size(); ++axis)
    axes.insert(axes.end(), static_cast<size_t>(sections[axis]),
                arrangement == MRopeSections::chunked ? static_cast<int64_t>(axis) : 0);
  if (arrangement == MRopeSections::interleaved)
    for (const int64_t axis : {1, 2})
      for (int64_t m = axis; m < 3 * sections[static_cast<size_t>(axis)]; m += 3)
        axes[static_cast<size_t>(m)] = axis;
  return axes;
}

std::vector<std::array<int64_t, 3>> m_rope_positions(const std::vector<MRopeSpan>& spans) {
  std::vector<std::array<int64_t, 3>> out;
  int64_t next = 0;
  for (const MRopeSpan& span : spans) {
    for (int64_t i = 0; i < span.tokens; ++i, ++next) out.push_back({next, next, next});
    for (int64_t t = 0; t < span.frames; ++t)
      for (int64_t h = 0; h < span.height; ++h)
        for (int64_t w = 0; w < span.width; ++w) out.push_back({next + t, next + h, next + w});
    if (span.frames * span.height * span.width > 0)
      next += std::max({span.frames, span.height, span.width});
  }
  return out;
}

}  // namespace tessera::nn
