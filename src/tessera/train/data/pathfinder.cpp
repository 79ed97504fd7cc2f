#include "tessera/train/data/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr double kMargin = 2, kDash = 2, kClearance = 1.5;

double distance(PathPoint a, PathPoint b) {
  return std::hypot(a.x - b.x, a.y - b.y);
}

double distance(PathPoint point, const Dash& dash) {
  const double dx = dash.end.x - dash.begin.x, dy = dash.end.y - dash.begin.y;
  const double along = (point.x - dash.begin.x) * dx + (point.y - dash.begin.y) * dy;
  const double t = std::clamp(along / (dx * dx + dy * dy), 0.0, 1.0);
  return distance(point, PathPoint{dash.begin.x + t * dx, dash.begin.y + t * dy});
}

bool cross(const Dash& a, const Dash& b) {
  const auto side = [](const Dash& line, PathPoint p) {
    return (line.end.x - line.begin.x) * (p.y - line.begin.y) -
           (line.end.y - line.begin.y) * (p.x - line.begin.x);
  };
  return side(a, b.begin) * side(a, b.end) < 0 && side(b, a.begin) * side(b, a.end) < 0;
}

double distance(const Dash& a, const Dash& b) {
  if (cross(a, b)) return 0;
  return std::min(
      {distance(a.begin, b), distance(a.end, b), distance(b.begin, a), distance(b.end, a)});
}

using Curve = std::vector<Dash>;

/// Draws of one image, in order.
class PathMaker {
 public:
  PathMaker(const PathfinderOptions& options, const RandomKey& key)
      : options_(options), key_(key) {}

  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(key_.bits(next_++)) * 0x1p-32;
  }

  /// A curve that is clear of `others`; nullopt after `restarts` attempts.
  std::optional<Curve> curve(int64_t dashes, const std::vector<Dash>& others, int restarts) {
    for (int attempt = 0; attempt < restarts; ++attempt)
      if (auto made = attempt_curve(dashes, others)) return made;
    return std::nullopt;
  }

 private:
  std::optional<Curve> attempt_curve(int64_t dashes, const std::vector<Dash>& others) {
    constexpr int kDraws = 16;
    const double low = kMargin, high = static_cast<double>(options_.size) - kMargin;
    const double largest = options_.turn * std::numbers::pi / 180;
    Curve made;
    double angle = 0;
    PathPoint at;
    for (int64_t i = 0; i < dashes; ++i) {
      bool placed = false;
      for (int draw = 0; draw < kDraws && !placed; ++draw) {
        double direction = uniform(0, 2 * std::numbers::pi);
        PathPoint begin{uniform(low, high), uniform(low, high)};
        if (i > 0) {
          direction = angle + uniform(-largest, largest);
          begin = {at.x + options_.gap * std::cos(direction),
                   at.y + options_.gap * std::sin(direction)};
        }
        const Dash dash{
            begin, {begin.x + kDash * std::cos(direction), begin.y + kDash * std::sin(direction)}};
        placed = inside(dash, low, high) && clear(dash, made, others);
        if (!placed) continue;
        angle = direction;
        at = dash.end;
        made.push_back(dash);
      }
      if (!placed) return std::nullopt;
    }
    return made;
  }

  static bool inside(const Dash& dash, double low, double high) {
    for (const PathPoint& p : {dash.begin, dash.end})
      if (p.x < low || p.x > high || p.y < low || p.y > high) return false;
    return true;
  }
  static bool clear(const Dash& dash, const Curve& own, const std::vector<Dash>& others) {
    for (size_t i = 0; i + 1 < own.size(); ++i)  // the predecessor is near
      if (distance(dash, own[i]) < kClearance) return false;
    return std::all_of(others.begin(), others.end(),
                       [&](const Dash& one) { return distance(dash, one) >= kClearance; });
  }

  const PathfinderOptions& options_;
  RandomKey key_;
  uint64_t next_ = 0;
};

}  // namespace

PathfinderOptions PathfinderOptions::of_level(const std::string& level, int64_t size) {
  if (level == "easy") return {.size = size};
  if (level == "medium") return {.size = size, .dashes = 9, .distractors = 6};
  if (level == "hard") return {.size = size, .dashes = 14, .distractors = 4, .gap = 1, .turn = 60};
  fail(ErrorKind::usage, "pathfinder", "level \"{}\"; expected easy, medium or hard", level);
}

PathfinderImage make_pathfinder(const PathfinderOptions& options, const RandomKey& key) {
  constexpr int kRestarts = 32, kDistractorRestarts = 8;
  constexpr uint64_t kImages = 100'000;  // attempts
  constexpr double kShortest = 6, kTolerance = 1;
  for (uint64_t attempt = 0; attempt < kImages; ++attempt) {
    PathMaker maker(options, key.fold(attempt));
    const auto first = maker.curve(options.dashes, {}, kRestarts);
    if (!first) continue;
    const auto second = maker.curve(options.dashes, *first, kRestarts);
    if (!second) continue;
    const PathPoint a[] = {first->front().begin, first->back().end},
                    b[] = {second->front().begin, second->back().end};
    const double d = distance(a[0], a[1]);
    if (d < kShortest) continue;
    // ends of both curves that are as far apart as those of the first
    std::vector<PathPoint> apart = {a[0], b[0]};
    for (const PathPoint& p : a)
      for (const PathPoint& q : b)
        if (std::abs(distance(p, q) - d) < std::abs(distance(apart[0], apart[1]) - d))
          apart = {p, q};
    if (std::abs(distance(apart[0], apart[1]) - d) > kTolerance) continue;
    PathfinderImage image;
    image.connected = maker.uniform(0, 1) < 0.5;
    std::vector<Dash> dashes = *first;
    dashes.insert(dashes.end(), second->begin(), second->end());
    for (int64_t m = 0; m < options.distractors; ++m)
      if (const auto more =
              maker.curve(std::max<int64_t>(2, options.dashes / 3), dashes, kDistractorRestarts))
        dashes.insert(dashes.end(), more->begin(), more->end());
    const std::vector<PathPoint> marks =
        image.connected ? std::vector<PathPoint>{a[0], a[1]} : apart;
    image.distance = distance(marks[0], marks[1]);
    image.pixels = draw_paths(options.size, dashes, marks);
    return image;
  }
  fail(ErrorKind::usage, "pathfinder",
       "curves of {} dashes do not fit into {} x {} pixels; expected a larger image",
       options.dashes, options.size, options.size);
}

std::vector<uint8_t> draw_paths(int64_t size,
                                std::span<const Dash> dashes,
                                std::span<const PathPoint> marks) {
  std::vector<uint8_t> pixels;
  for (int64_t row = 0; row < size; ++row)
    for (int64_t column = 0; column < size; ++column) {
      const PathPoint centre{static_cast<double>(column) + 0.5, static_cast<double>(row) + 0.5};
      double value = 0;
      for (const Dash& dash : dashes)
        value = std::max(value, 0.75 * std::clamp(1 - distance(centre, dash), 0.0, 1.0));
      for (const PathPoint& mark : marks)
        value = std::max(value, std::clamp(2 - distance(centre, mark), 0.0, 1.0));
      pixels.push_back(static_cast<uint8_t>(std::floor(255 * value + 0.5)));
    }
  return pixels;
}

}  // namespace tessera::train
