// Pathfinder images (Linsley et al. 2018, arXiv:1805.08315; Long Range Arena): are the two marked
// points the ends of one dashed curve? A generator that is simpler than the original: dashes of
// length 2 that turn by a random angle, and shorter curves as distractors. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/rng.h"

namespace tessera::train {

struct PathfinderOptions {
  int64_t size = 32;        // pixels of a side
  int64_t dashes = 6;       // of each of the two long curves
  int64_t distractors = 8;  // short curves
  double gap = 2;           // between dashes, pixels
  double turn = 45;         // largest angle between dashes, degrees

  /// easy, medium or hard. Throws Error(usage) for another level.
  static PathfinderOptions of_level(const std::string& level, int64_t size = 32);
};

struct PathPoint {
  double x = 0, y = 0;
};
struct Dash {
  PathPoint begin, end;
};

struct PathfinderImage {
  std::vector<uint8_t> pixels;  // rows of grey values
  bool connected = false;       // the marks are the ends of one curve
  double distance = 0;          // between the marks
};

/// One image, a pure function of options and key. Throws Error(usage) if the curves do not fit.
PathfinderImage make_pathfinder(const PathfinderOptions& options, const RandomKey& key);

/// Grey values: the largest of 0.75 (1 - d) for each dash and 2 - d for each mark, at most 1, with
/// d the distance to the centre of the pixel.
std::vector<uint8_t> draw_paths(int64_t size,
                                std::span<const Dash> dashes,
                                std::span<const PathPoint> marks);

}  // namespace tessera::train
