// The searches of quantize: scales of groups of numbers that leave the least weighted error.
//
// Groups are in the lanes of a vector, each summed in the order of its elements, so
// that results are those of one group after the other, on every target.
//   range:   x ~ scale q - minimum, q in 0 .. most: the grid moves the end of the range, and each
//            candidate's scale and minimum are solved for by least squares
//   scale:   x ~ scale (q - most), q in 0 .. 2 most - 1: the same with a scale alone
//   descent: the same from one start, q one by one to what the others make best
//   levels:  x ~ scale kLevels[q]
#pragma once

#include <cstdint>

#include "tessera/kernels/weights/blocks.h"

namespace tessera::kernels {

/// Groups of n numbers, one after the other, with the weights of their errors.
struct Groups {
  const float* x;
  const float* weights;
  int count, n;  // n: 16 or 32
};

struct RangeGrid {
  int most;
  float first, step;  // the range is cut into most + first + step i parts, i = 0 .. steps
  int steps;
  bool absolute;  // errors count by size, else by square
};

/// codes: count * n; scales, minima: count each, minima >= 0.
void search_ranges(
    const Groups& groups, const RangeGrid& grid, uint8_t* codes, float* scales, float* minima);

void search_scales(const Groups& groups, int most, uint8_t* codes, float* scales);

/// Weights are the squares of the numbers, whatever the groups say.
void descend_scales(const Groups& groups, int most, uint8_t* codes, float* scales);

/// Scales alone; n is 32.
void search_levels(const Groups& groups, float* scales);

/// codes = clamp(nearest((x + m) / d), low, high) - low, of n numbers; n a multiple of 16, d not 0.
void round_to_codes(const float* x, int n, float d, float m, int low, int high, uint8_t* codes);

/// codes = the nearest of the sixteen levels to x * inverse; n a multiple of 16.
void round_to_levels(const float* x, int n, float inverse, uint8_t* codes);

/// w = importance * sqrt(base + x^2), of n numbers; n a multiple of 16.
void weigh(const float* x, const float* importance, float base, int n, float* w);

}  // namespace tessera::kernels
