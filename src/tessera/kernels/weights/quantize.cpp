#include "tessera/kernels/weights/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/base/denormals.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/weights/block_codes.h"
#include "tessera/kernels/weights/quantize_search.h"

namespace tessera::kernels {
namespace {

constexpr int kElements = 32;
constexpr int kSuper = 256;  // elements of a block of the K types

// --- types of 32 elements, the scale from the numbers alone --------------------------------------

struct Format {
  DType type;
  int bits;
  bool has_minimum;  // values d * q + m, else d * (q - 2^(bits - 1))
};
constexpr Format kFormats[] = {{DType::q8_0, 8, false},
                               {DType::q4_0, 4, false},
                               {DType::q4_1, 4, true},
                               {DType::q5_0, 5, false},
                               {DType::q5_1, 5, true}};

const Format* format_of(DType type) {
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [&](const Format& format) { return format.type == type; });
  return found == std::end(kFormats) ? nullptr : found;
}

uint8_t* put_half(float value, uint8_t* to) {
  const uint16_t bits = float_to_f16(value);
  std::memcpy(to, &bits, sizeof bits);
  return to + sizeof bits;
}

float inverse(float d) {
  return d == 0 ? 0 : 1 / d;
}

/// The number of the largest magnitude of n, the first of several.
float furthest(const float* x, int n) {
  return *std::max_element(x, x + n, [](float a, float b) { return std::abs(a) < std::abs(b); });
}

/// d, then a signed byte each.
void write_bytes(const float* x, uint8_t* to) {
  const float d = std::abs(furthest(x, kElements)) / 127, id = inverse(d);
  put_half(d, to);
  uint8_t code[kElements];
  for (int i = 0; i < kElements; ++i)
    code[i] = static_cast<uint8_t>(127 + static_cast<int>(std::round(x[i] * id)));
  put_codes(DType::q8_0, code, to);
}

/// d, m where there is a minimum, the codes.
void pack(const Format& format, float d, float minimum, const uint8_t* code, uint8_t* to) {
  uint8_t* end = put_half(d, to);
  if (format.has_minimum) put_half(minimum, end);
  put_codes(format.type, code, to);
}

void write_nibbles(const Format& format, const float* x, uint8_t* to) {
  const int most = (1 << format.bits) - 1, half = 1 << (format.bits - 1);
  float origin = 0, d = 0, shift = 0;
  if (format.has_minimum) {
    const auto [low, high] = std::minmax_element(x, x + kElements);
    origin = *low;
    d = (*high - *low) / static_cast<float>(most);
    shift = 0.5F;
  } else {
    // the furthest number is the lowest code, of which there is one more than above zero
    d = furthest(x, kElements) / static_cast<float>(-half);
    shift = static_cast<float>(half) + 0.5F;
  }
  const float id = inverse(d);
  uint8_t code[kElements];
  for (int i = 0; i < kElements; ++i)
    code[i] =
        static_cast<uint8_t>(std::clamp(static_cast<int>((x[i] - origin) * id + shift), 0, most));
  pack(format, d, origin, code, to);
}

/// MXFP4: the power of two that puts the largest magnitude into the last binade, and of the values
/// that it scales the nearest, of two as near the first.
void write_mxfp4(const float* x, uint8_t* to) {
  const float most = std::abs(furthest(x, kElements));
  const bool none = most < 0x1p-124F;
  to[0] = none ? 0 : static_cast<uint8_t>(static_cast<int>(std::floor(std::log2(most))) - 2 + 127);
  const float d = half_of_e8m0(to[0]);
  uint8_t code[kElements] = {};
  for (int i = 0; i < kElements && !none; ++i) {
    float least = std::abs(x[i]);
    for (uint8_t q = 1; q < 16; ++q) {
      const float error = std::abs(static_cast<float>(kTwiceE2m1[q]) * d - x[i]);
      if (error < least) {
        least = error;
        code[i] = q;
      }
    }
  }
  put_codes(DType::mxfp4, code, to);
}

// --- the same, searched for ----------------------------------------------------------------------

// with importance, every type looks for ranges on this grid
constexpr RangeGrid fine_grid(int most) {
  return {.most = most, .first = -0.9F, .step = 0.05F, .steps = 36, .absolute = false};
}

float sum_of_squares(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

/// iq4_nl, one block: its scale by the search, its codes by the scale before it was rounded.
void write_levels(const float* x, const float* importance, uint8_t* to) {
  float weights[kElements], scale;
  if (importance != nullptr) {
    weigh(x, importance, sum_of_squares(x, kElements) * (2.0F / kElements), kElements, weights);
  } else {
    for (int i = 0; i < kElements; ++i) weights[i] = x[i] * x[i];
  }
  search_levels({x, weights, 1, kElements}, &scale);
  uint8_t code[kElements];
  round_to_levels(x, kElements, inverse(scale), code);
  put_half(scale, to);
  put_codes(DType::iq4_nl, code, to);
}

/// `count` neighbouring blocks of one row; `mean` = the mean square of the row.
void write_searched(const Format& format,
                    const float* x,
                    const float* importance,
                    float mean,
                    int count,
                    uint8_t* to) {
  constexpr int kMost = 8;
  float weights[kMost * kElements], scales[kMost], minima[kMost] = {};
  uint8_t codes[kMost * kElements];
  weigh(x, importance, mean, count * kElements, weights);
  const Groups groups{x, weights, count, kElements};
  if (format.has_minimum)
    search_ranges(groups, fine_grid((1 << format.bits) - 1), codes, scales, minima);
  else
    search_scales(groups, 1 << (format.bits - 1), codes, scales);
  const int64_t size = layout_of(format.type).block_bytes;
  for (int b = 0; b < count; ++b)
    pack(format, scales[b], -minima[b], codes + b * kElements, to + b * size);
}

// --- K types -------------------------------------------------------------------------------------

float half_rounded(float value) {
  return f16_to_float(float_to_f16(value));
}

// as the searches round
int nearest(float v) {
  const float magic = v + 0x1.8p23F;
  int32_t bits;
  std::memcpy(&bits, &magic, sizeof bits);
  return (bits & 0x007fffff) - 0x00400000;
}

/// The scale of scales that are not negative, codes 0 .. most: the grid, then codes one by one to
/// what the others make best.
float scale_of_scales(const float* x, const float* weights, int n, int most, uint8_t* codes) {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  std::fill_n(codes, n, uint8_t{0});
  if (largest < 1e-15F) return 0;
  float best_inverse = static_cast<float>(most) / largest, best = 0;
  const float plain = 1 / best_inverse;
  for (int i = 0; i < n; ++i) {
    const float difference =
        x[i] - plain * static_cast<float>(static_cast<uint8_t>(nearest(best_inverse * x[i])));
    best += weights[i] * difference * difference;
  }
  for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const float inverse = (0.1F * static_cast<float>(step) + static_cast<float>(most)) / largest;
    const float scale = 1 / inverse;
    float error = 0;
    for (int i = 0; i < n; ++i) {
      const float difference =
          x[i] - scale * static_cast<float>(std::min(most, nearest(inverse * x[i])));
      error += weights[i] * difference * difference;
    }
    if (error < best) {
      best = error;
      best_inverse = inverse;
    }
  }
  float sum_xq = 0, sum_q2 = 0;
  for (int i = 0; i < n; ++i) {
    const int code = std::min(most, nearest(best_inverse * x[i]));
    codes[i] = static_cast<uint8_t>(code);
    const auto q = static_cast<float>(code);
    sum_xq += weights[i] * x[i] * q;
    sum_q2 += weights[i] * q * q;
  }
  for (int round = 0; round < 5; ++round) {
    bool changed = false;
    for (int i = 0; i < n; ++i) {
      const float w = weights[i], q = codes[i];
      float xq = sum_xq - w * x[i] * q, q2 = sum_q2 - w * q * q;
      if (!(xq > 0 && q2 > 0)) continue;
      const int code = std::min(most, nearest(x[i] * q2 / xq));
      if (code == codes[i]) continue;
      const auto next = static_cast<float>(code);
      xq += w * x[i] * next;
      q2 += w * next * next;
      if (xq * xq * sum_q2 > sum_xq * sum_xq * q2) {
        codes[i] = static_cast<uint8_t>(code);
        sum_xq = xq;
        sum_q2 = q2;
        changed = true;
      }
    }
    if (!changed) break;
  }
  return sum_q2 > 0 ? sum_xq / sum_q2 : 0;
}

struct Searched {
  uint8_t codes[kSuper];
  float scales[16], minima[16] = {}, weights[16];  // of errors in the groups, by importance
};

/// The weights of a block's numbers, and their sums by groups.
void weigh_groups(
    const float* x, const float* importance, float base, int n, float* weights, Searched& out) {
  weigh(x, importance, base, kSuper, weights);
  for (int g = 0; g < kSuper / n; ++g) {
    out.weights[g] = 0;
    for (int i = 0; i < n; ++i) out.weights[g] += weights[g * n + i];
  }
}

/// The largest of the scales, and codes 0 .. most for them by it.
float plain_scale(const float* scales, int n, int most, uint8_t* codes) {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = scales[i] > largest ? scales[i] : largest;
  const float inverse = largest > 0 ? static_cast<float>(most) / largest : 0.0F;
  for (int i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(
        std::min<int>(most, static_cast<uint8_t>(nearest(inverse * scales[i]))));
  return largest / static_cast<float>(most);
}

/// Types with minima (q2_k, q4_k, q5_k): how their groups are cut, and the bits of what they store.
struct RangeType {
  DType type;
  int n, most, most_scale;
  RangeGrid grid;
};
constexpr RangeType kRangeTypes[] = {
    {DType::q2_k, 16, 3, 15, {3, -0.5F, 0.1F, 15, true}},
    {DType::q4_k, 32, 15, 63, {15, -1.0F, 0.1F, 20, false}},
    {DType::q5_k, 32, 31, 63, {31, -0.5F, 0.1F, 15, false}},
};

void weigh_ranges(const RangeType& type, const float* x, float* weights) {
  for (int at = 0; at < kSuper; at += type.n) {
    // q2_k counts errors by size alone
    const float base = type.type == DType::q2_k
                           ? 0
                           : std::sqrt(sum_of_squares(x + at, type.n) / static_cast<float>(type.n));
    for (int i = at; i < at + type.n; ++i) weights[i] = base + std::abs(x[i]);
  }
}

/// Eight scales and eight minima of six bits in twelve bytes.
void put_six_bits(const uint8_t* scales, const uint8_t* minima, uint8_t* to) {
  for (int j = 0; j < 4; ++j) {
    const int s = scales[j + 4], m = minima[j + 4];
    to[j] = static_cast<uint8_t>(scales[j] | (s >> 4) << 6);
    to[j + 4] = static_cast<uint8_t>(minima[j] | (m >> 4) << 6);
    to[j + 8] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
  }
}

void write_range_type(const RangeType& type, const float* x, const float* importance, uint8_t* to) {
  const int count = kSuper / type.n;
  float weights[kSuper], d, m;
  uint8_t scale_codes[16], minimum_codes[16];
  Searched found;
  const Groups groups{x, weights, count, type.n};
  if (importance != nullptr) {
    const float mean = sum_of_squares(x, kSuper) / kSuper;
    weigh_groups(x, importance, type.type == DType::q2_k ? mean : 2 * mean, type.n, weights, found);
    search_ranges(groups, fine_grid(type.most), found.codes, found.scales, found.minima);
    d = scale_of_scales(found.scales, found.weights, count, type.most_scale, scale_codes);
    m = scale_of_scales(found.minima, found.weights, count, type.most_scale, minimum_codes);
  } else {
    weigh_ranges(type, x, weights);
    search_ranges(groups, type.grid, found.codes, found.scales, found.minima);
    d = plain_scale(found.scales, count, type.most_scale, scale_codes);
    m = plain_scale(found.minima, count, type.most_scale, minimum_codes);
  }
  // codes by the scales as they are stored
  for (int g = 0; g < count; ++g) {
    const float scale = half_rounded(d) * scale_codes[g];
    if (scale != 0)
      round_to_codes(x + g * type.n, type.n, scale, half_rounded(m) * minimum_codes[g], 0,
                     type.most, found.codes + g * type.n);
  }
  if (type.type == DType::q2_k) {
    for (int g = 0; g < count; ++g)
      to[g] = static_cast<uint8_t>(scale_codes[g] | minimum_codes[g] << 4);
    put_half(m, put_half(d, to + 80));
  } else {
    put_six_bits(scale_codes, minimum_codes, put_half(m, put_half(d, to)));
  }
  put_codes(type.type, found.codes, to);
}

/// Codes by the scales as they are stored.
void round_by_scales(const float* x, float d, const int8_t* scales, int most, uint8_t* codes) {
  for (int g = 0; g < 16; ++g) {
    const float scale = half_rounded(d) * scales[g];
    if (scale != 0) round_to_codes(x + 16 * g, 16, scale, 0, -most, most - 1, codes + 16 * g);
  }
}

void write_q3_k(const float* x, const float* importance, uint8_t* to) {
  constexpr int kMost = 4, kMostScale = 32;
  float weights[kSuper], d = 0;
  int8_t scales[16];
  Searched found;
  if (importance != nullptr) {
    weigh_groups(x, importance, 2 * sum_of_squares(x, kSuper) / kSuper, 16, weights, found);
    search_scales({x, weights, 16, 16}, kMost, found.codes, found.scales);
    uint8_t codes[16];
    search_scales({found.scales, found.weights, 1, 16}, kMostScale, codes, &d);
    for (int g = 0; g < 16; ++g) scales[g] = static_cast<int8_t>(codes[g] - kMostScale);
  } else {
    descend_scales({x, nullptr, 16, 16}, kMost, found.codes, found.scales);
    const float end = furthest(found.scales, 16);
    std::fill_n(scales, 16, int8_t{-kMostScale});
    if (end != 0) {
      const float inverse = -static_cast<float>(kMostScale) / end;
      d = 1 / inverse;
      for (int g = 0; g < 16; ++g)
        scales[g] = static_cast<int8_t>(std::clamp<int>(
            static_cast<int8_t>(nearest(inverse * found.scales[g])), -kMostScale, kMostScale - 1));
    }
  }
  round_by_scales(x, d, scales, kMost, found.codes);
  put_codes(DType::q3_k, found.codes, to);
  // sixteen scales of six bits in twelve bytes
  std::memset(to + 96, 0, 12);
  for (int g = 0; g < 16; ++g) {
    const int code = scales[g] + kMostScale;
    to[96 + g % 8] = static_cast<uint8_t>(to[96 + g % 8] | (code & 15) << (g < 8 ? 0 : 4));
    to[104 + g % 4] = static_cast<uint8_t>(to[104 + g % 4] | (code >> 4) << 2 * (g / 4));
  }
  put_half(d, to + 108);
}

void write_q6_k(const float* x, const float* importance, uint8_t* to) {
  constexpr int kMost = 32;
  float squares[kSuper];
  Searched found;
  for (int i = 0; i < kSuper; ++i) squares[i] = x[i] * x[i];
  search_scales({x, importance != nullptr ? importance : squares, 16, 16}, kMost, found.codes,
                found.scales);
  const float end = furthest(found.scales, 16);
  if (std::abs(end) < 1e-15F) {
    std::memset(to, 0, 210);
    return;
  }
  const float inverse = -128.0F / end, d = 1 / inverse;
  int8_t scales[16];
  for (int g = 0; g < 16; ++g)
    scales[g] = static_cast<int8_t>(std::min(127, nearest(inverse * found.scales[g])));
  round_by_scales(x, d, scales, kMost, found.codes);
  put_codes(DType::q6_k, found.codes, to);
  std::memcpy(to + 192, scales, 16);
  put_half(d, to + 208);
}

void write_iq4_xs(const float* x, const float* importance, uint8_t* to) {
  constexpr int kMostScale = 32, kGroups = kSuper / kElements;
  float weights[kSuper], scales[kGroups];
  if (importance != nullptr) {
    weigh(x, importance, sum_of_squares(x, kSuper) * (2.0F / kSuper), kSuper, weights);
  } else {
    for (int i = 0; i < kSuper; ++i) weights[i] = x[i] * x[i];
  }
  search_levels({x, weights, kGroups, kElements}, scales);
  const float d = -furthest(scales, kGroups) / kMostScale;
  uint8_t* low = put_half(d, to) + 2;
  uint32_t high = 0;
  uint8_t codes[kSuper];
  std::memset(low, 0, 4);
  for (int g = 0; g < kGroups; ++g) {
    const int scale = std::clamp(nearest(inverse(d) * scales[g]), -kMostScale, kMostScale - 1);
    round_to_levels(x + g * kElements, kElements, inverse(d * static_cast<float>(scale)),
                    codes + g * kElements);
    low[g / 2] = static_cast<uint8_t>(low[g / 2] | ((scale + kMostScale) & 15) << 4 * (g % 2));
    high |= static_cast<uint32_t>((scale + kMostScale) >> 4) << 2 * g;
  }
  const auto bits = static_cast<uint16_t>(high);
  std::memcpy(to + 2, &bits, sizeof bits);
  put_codes(DType::iq4_xs, codes, to);
}

// tq1_0 and tq2_0: -1, 0 and 1 times the largest magnitude, rounded away from zero at halves
void round_to_thirds(const float* x, uint8_t* codes, float& d) {
  d = 0;
  for (int i = 0; i < kSuper; ++i) d = std::max(d, std::abs(x[i]));
  const float by = d < 0x1p-126F ? 0 : 1 / d;
  for (int i = 0; i < kSuper; ++i)
    codes[i] = static_cast<uint8_t>(static_cast<int>(std::round(x[i] * by)) + 1);
}

void write_tq2_0(const float* x, const float*, uint8_t* to) {
  uint8_t codes[kSuper];
  float d;
  round_to_thirds(x, codes, d);
  put_codes(DType::tq2_0, codes, to);
  put_half(d, to + 64);
}

void write_tq1_0(const float* x, const float*, uint8_t* to) {
  uint8_t codes[kSuper];
  float d;
  round_to_thirds(x, codes, d);
  put_codes(DType::tq1_0, codes, to);
  put_half(d, to + 52);
}

// --- all types -----------------------------------------------------------------------------------

using WriteBlock = void (*)(const float* x, const float* importance, uint8_t* to);

template <int which>
void write_ranges(const float* x, const float* importance, uint8_t* to) {
  write_range_type(kRangeTypes[which], x, importance, to);
}

/// How one block is written, of types whose blocks need nothing of their row.
WriteBlock writer_of(DType type) {
  switch (type) {
    case DType::q2_k:
      return write_ranges<0>;
    case DType::q3_k:
      return write_q3_k;
    case DType::q4_k:
      return write_ranges<1>;
    case DType::q5_k:
      return write_ranges<2>;
    case DType::q6_k:
      return write_q6_k;
    case DType::tq1_0:
      return write_tq1_0;
    case DType::tq2_0:
      return write_tq2_0;
    case DType::iq4_nl:
      return write_levels;
    case DType::iq4_xs:
      return write_iq4_xs;
    case DType::mxfp4:
      return [](const float* x, const float*, uint8_t* to) { write_mxfp4(x, to); };
    default:
      return nullptr;
  }
}

void write_plain(const Format& format, const float* x, uint8_t* to) {
  format.bits == 8 ? write_bytes(x, to) : write_nibbles(format, x, to);
}

}  // namespace

bool can_quantize(DType type) {
  return format_of(type) != nullptr || writer_of(type) != nullptr;
}

void quantize(DType type, const float* src, int64_t n, void* dst) {
  quantize_rows(type, src, n == 0 ? 0 : 1, n, nullptr, dst);
}

void quantize_rows(
    DType type, const float* src, int64_t rows, int64_t k, const float* importance, void* dst) {
  require(can_quantize(type), "quantize", "nothing writes type {}", name_of(type));
  const Format* format = format_of(type);
  const WriteBlock writer = writer_of(type);
  const int64_t elements = layout_of(type).block_elements, size = layout_of(type).block_bytes;
  require(rows >= 0 && k >= 0 && k % elements == 0, "quantize",
          "{} elements of type {}: expected whole blocks of {}", k, name_of(type), elements);
  cap_targets();
  auto* bytes = static_cast<uint8_t*>(dst);
  const int64_t of_row = k / elements;
  const bool by_rows = format != nullptr && format->bits < 8 && importance != nullptr;
  std::vector<float> means(by_rows ? static_cast<size_t>(rows) : 0);
  parallel_for(std::ssize(means), std::max<int64_t>(1, 16384 / std::max<int64_t>(1, k)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row)
                   means[static_cast<size_t>(row)] =
                       sum_of_squares(src + row * k, k) / static_cast<float>(k);
               });
  parallel_for(rows * of_row, 4096 / elements, [&](int64_t begin, int64_t end) {
    // searches compare products of six small factors
    const bool searched = by_rows || writer != nullptr;
    const Denormals denormals(searched ? Denormals::kept : Denormals::flushed);
    for (int64_t block = begin; block < end;) {
      const int64_t row = block / of_row, at = block % of_row;
      // what is searched for goes several blocks at once, of one row
      const int64_t count = by_rows ? std::min<int64_t>({8, end - block, of_row - at}) : 1;
      const float* x = src + block * elements;
      uint8_t* to = bytes + block * size;
      if (!std::all_of(x, x + count * elements, [](float v) { return std::isfinite(v); }))
        fail(ErrorKind::input, "quantize",
             "a number is not finite; expected finite numbers, as {} holds no others",
             name_of(type));
      const float* of_block = importance != nullptr ? importance + at * elements : nullptr;
      if (by_rows)
        write_searched(*format, x, of_block, means[static_cast<size_t>(row)],
                       static_cast<int>(count), to);
      else if (writer != nullptr)
        writer(x, of_block, to);
      else
        write_plain(*format, x, to);
      block += count;
    }
  });
}

}  // namespace tessera::kernels
