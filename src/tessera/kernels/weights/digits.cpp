#include "tessera/kernels/weights/digits.h"

// AVX3_DL: AVX-512 with products of bytes; without them it gains too little over AVX2 to be
// compiled
#define HWY_WANT_AVX3_DL
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/digits.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/weights/bf16_rows.h"
#include "tessera/kernels/weights/digit_tiles.h"
#include "tessera/kernels/weights/digit_lanes_inl.h"
#include "tessera/kernels/weights/digits_inl.h"
#include "tessera/kernels/weights/matmul.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Products of bytes four by four, unsigned codes times signed digits; else of 16-bit numbers two by
// two, both signed, where two digits are one number. The sums are the same.
#if HWY_TARGET == HWY_AVX3_DL
constexpr bool kBytewise = true;
#else
constexpr bool kBytewise = false;
#endif
constexpr int kUnits = kBytewise ? 8 : 16;  // of four bytes in a block of 32 codes
// of units in a panel: the compiler adds products of 16 bits up in an order of its own, and keeps
// all of them in memory for that, where it sees many
constexpr int kUnroll = kBytewise ? kUnits : 1;

// --- rounding x ----------------------------------------------------------------------------------

// round to nearest even, of numbers below 2^22
HWY_INLINE VI nearest(V32 v) {
  const V32 magic = all(0x1.8p23f);
  return hn::Sub(hn::BitCast(I32(), hn::Add(v, magic)), hn::BitCast(I32(), magic));
}

HWY_INLINE int32_t sum_of_ints(VI v) {
  return hn::GetLane(hn::SumOfLanes(I32(), v));
}

template <class D>
HWY_INLINE void store_narrow(VI v, void* to) {
  hn::StoreU(hn::DemoteTo(D(), v), D(), static_cast<hn::TFromD<D>*>(to));
}

constexpr int kBlockVectors = 32 / kLanes;

// The bits of the largest magnitude; those of positive floats are in their order, infinity and NaN
// last.
HWY_INLINE uint32_t largest_of(VI largest) {
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), largest)));
}
constexpr uint32_t kInfinityBits = 0x7f800000u;

HWY_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

HWY_INLINE VI magnitude(V32 v) {
  return hn::BitCast(I32(), hn::Abs(v));
}

// 32 numbers as they were read, rounded by `inverse` to multiples of block.s
template <bool two>
HWY_INLINE void round_by(const V32 (&xs)[kBlockVectors],
                         float inverse,
                         uint8_t* codes,
                         RoundedBlock& block) {
  VI sums[2] = {int_all(0), int_all(0)};
#pragma GCC unroll 8
  for (int i = 0; i < kBlockVectors; ++i) {
    const VI v = nearest(hn::Mul(xs[i], all(inverse)));
    VI& sum = sums[i * kLanes / 16];
    sum = hn::Add(sum, v);
    if constexpr (!kBytewise) {
      store_narrow<hn::Rebind<int16_t, I32>>(v, codes + 2 * i * kLanes);
    } else if constexpr (two) {
      const VI high = hn::ShiftRight<7>(hn::Add(v, int_all(64)));
      store_narrow<I8>(high, codes + i * kLanes);
      store_narrow<I8>(hn::Sub(v, hn::ShiftLeft<7>(high)), codes + 32 + i * kLanes);
    } else {
      store_narrow<I8>(v, codes + i * kLanes);
    }
  }
  for (int half = 0; half < 2; ++half) {
    block.half_sum[half] = sum_of_ints(sums[half]);
    block.half_total[half] = block.s * static_cast<float>(block.half_sum[half]);
  }
  block.sum = block.half_sum[0] + block.half_sum[1];
  block.total = block.s * static_cast<float>(block.sum);
}

// false where a number is not finite
template <bool two>
HWY_INLINE bool round_block(const float* x, uint8_t* codes, RoundedBlock& block) {
  constexpr float kMost = two ? 127 * 128 : 127;
  V32 xs[kBlockVectors];
  VI largest = int_all(0);
#pragma GCC unroll 8
  for (int i = 0; i < kBlockVectors; ++i) {
    xs[i] = load(x + i * kLanes);
    largest = hn::Max(largest, magnitude(xs[i]));
  }
  const uint32_t bits = largest_of(largest);
  if (bits >= kInfinityBits) return false;
  const float most = float_of(bits);
  const bool none = most < 0x1p-112f;
  block.s = none ? 0 : most / kMost;
  round_by<two>(xs, none ? 0 : kMost / most, codes, block);
  return true;
}

constexpr int64_t codes_of_block(bool two) {
  return kBytewise && !two ? 32 : 64;
}

template <bool two>
HWY_INLINE void round_some(const RoundedRows& r, int64_t begin, int64_t end) {
  const int64_t blocks = r.k / 32;
  for (int64_t i = begin; i < end; ++i) {
    bool finite = true;
    for (int64_t b = 0; b < blocks && finite; ++b)
      finite = round_block<two>(r.x + i * r.x_stride + 32 * b,
                                r.codes + i * r.row_codes + b * codes_of_block(two),
                                r.blocks[i * blocks + b]);
    r.finite[i] = finite ? 1 : 0;
  }
}

// one digit and one scale for a row
HWY_INLINE void round_by_row(const RoundedRows& r, int64_t begin, int64_t end) {
  constexpr float kMost = 127;
  const int64_t blocks = r.k / 32;
  for (int64_t i = begin; i < end; ++i) {
    const float* x = r.x + i * r.x_stride;
    VI largest = int_all(0);
    for (int64_t c = 0; c < r.k; c += kLanes) largest = hn::Max(largest, magnitude(load(x + c)));
    const uint32_t bits = largest_of(largest);
    r.finite[i] = bits < kInfinityBits ? 1 : 0;
    if (bits >= kInfinityBits) continue;
    const float most = std::max(float_of(bits), kLeastRowMagnitude);
    for (int64_t b = 0; b < blocks; ++b) {
      V32 xs[kBlockVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVectors; ++v) xs[v] = load(x + 32 * b + v * kLanes);
      RoundedBlock& block = r.blocks[i * blocks + b];
      block.s = most / kMost;
      round_by<false>(xs, kMost / most, r.codes + i * r.row_codes + b * codes_of_block(false),
                      block);
    }
  }
}

void round_range(const RoundedRows& r, int64_t begin, int64_t end) {
  if (r.by_row) return round_by_row(r, begin, end);
  r.int15 ? round_some<true>(r, begin, end) : round_some<false>(r, begin, end);
}

int64_t block_codes(bool two) {
  return codes_of_block(two);
}

// --- products of integers ------------------------------------------------------------------------

#if HWY_TARGET == HWY_AVX3_DL
// sum + four products: bytes of w, unsigned, times bytes of x
template <class V>
HWY_INLINE V add_products(V sum, V w, V x) {
  // by name, as this version of Highway lets the compiler use the form of another extension
  asm("%{evex%} vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
  return sum;
}
#else
// sum + two products of 16-bit numbers
template <class V>
HWY_INLINE V add_products(V sum, V w, V x) {
  const hn::DFromV<V> d;
  const hn::RepartitionToNarrow<decltype(d)> narrow;
#if HWY_TARGET <= HWY_AVX2
  V unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(narrow, w), hn::BitCast(narrow, x), sum,
                                       unused);
#else
  static_cast<void>(narrow);
  const auto low = [](V v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
  const auto high = [](V v) HWY_ATTR { return hn::ShiftRight<16>(v); };
  return hn::Add(sum, hn::Add(hn::Mul(low(w), low(x)), hn::Mul(high(w), high(x))));
#endif
}
#endif

// a b + c, rounded once on every target
template <class V>
HWY_INLINE V fused(V a, V b, V c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  const hn::DFromV<V> d;
  constexpr size_t kCount = hn::MaxLanes(hn::DFromV<V>());
  HWY_ALIGN float as[kCount], bs[kCount], cs[kCount];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(c, d, cs);
  for (size_t i = 0; i < kCount; ++i) cs[i] = std::fma(as[i], bs[i], cs[i]);
  return hn::Load(d, cs);
#endif
}

// --- few rows: columns in the lanes of a vector --------------------------------------------------

// From more rows on a panel is worth its packing; on a target of narrow vectors never.
constexpr int64_t kFewRows = kBytewise ? 8 : 4;
constexpr bool kPanels = kSide == 8;

HWY_INLINE VI four_bytes(const uint8_t* p) {
  return hn::Set(I32(), static_cast<int32_t>(word_at(p)));
}

constexpr int kParts = 32 / kBytes;
using Words = hn::CappedTag<int16_t, kBytes / 2>;

HWY_INLINE VX dword(const void* p) {
  return hn::LoadU(I8x(), static_cast<const int32_t*>(p));
}

// 32 codes of a row of w as they are multiplied
struct Codes {
#if HWY_TARGET == HWY_AVX3_DL
  VX bytes;
#else
  VX words[kUnits / kSide];
#endif
};

template <class Block>
HWY_INLINE Codes codes_of(const uint8_t* b, int g) {
  Codes out;
#if HWY_TARGET == HWY_AVX3_DL
  out.bytes = hn::BitCast(I8x(), Block::codes(b, g, 0));
#else
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    const auto v = signed_from(Block::codes(b, g, part * kBytes), Block::offset);
    const hn::Half<hn::RebindToSigned<Bytes>> half;
    out.words[2 * part] = hn::BitCast(I8x(), hn::PromoteTo(Words(), hn::LowerHalf(half, v)));
    out.words[2 * part + 1] = hn::BitCast(I8x(), hn::PromoteTo(Words(), hn::UpperHalf(half, v)));
  }
#endif
  return out;
}

// The sums of four lanes each of kSide vectors: of their lower lanes, and of the upper ones where
// there are eight.
HWY_INLINE void fold(const VX (&v)[kSide], VX& lower, VX& upper) {
  const I8x d;
  const hn::Repartition<int64_t, I8x> pairs;
  VX four[kSide / 4];
#pragma GCC unroll 2
  for (int q = 0; q < kSide / 4; ++q) {
    const VX *a = v + 4 * q, *c = a + 2;
    const auto ab = hn::Add(hn::InterleaveLower(d, a[0], a[1]), hn::InterleaveUpper(d, a[0], a[1]));
    const auto ce = hn::Add(hn::InterleaveLower(d, c[0], c[1]), hn::InterleaveUpper(d, c[0], c[1]));
    const auto ab2 = hn::BitCast(pairs, ab), ce2 = hn::BitCast(pairs, ce);
    four[q] = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab2, ce2)),
                      hn::BitCast(d, hn::InterleaveUpper(pairs, ab2, ce2)));
  }
  if constexpr (kSide == 8) {
    lower = hn::ConcatLowerLower(d, four[1], four[0]);
    upper = hn::ConcatUpperUpper(d, four[1], four[0]);
  } else {
    lower = four[0];
    upper = hn::Zero(d);
  }
}

// sums[t] = the sums of run t of 32 codes of kSide rows times x
template <class Block, bool two>
HWY_INLINE void sums_of_runs(const Codes (&w)[kSide],
                             const uint8_t* x,
                             const RoundedBlock& block,
                             VX (&sums)[32 / Block::run]) {
  const I8x d;
  VX lower, upper, v[kSide];
#if HWY_TARGET == HWY_AVX3_DL
  const VX first = dword(x), second = two ? dword(x + 32) : first;
#pragma GCC unroll 8
  for (int r = 0; r < kSide; ++r) {
    v[r] = add_products(hn::Zero(d), w[r].bytes, first);
    if constexpr (two) v[r] = add_products(hn::ShiftLeft<7>(v[r]), w[r].bytes, second);
  }
  fold(v, lower, upper);
  const auto offset = [&](VX sum, int32_t of_x) HWY_ATTR {
    return Block::offset == 0 ? sum : hn::Sub(sum, hn::Set(d, Block::offset * of_x));
  };
  if constexpr (Block::run == 32) {
    sums[0] = offset(hn::Add(lower, upper), block.sum);
  } else {
    sums[0] = offset(lower, block.half_sum[0]);
    sums[1] = offset(upper, block.half_sum[1]);
  }
#else
  static_cast<void>(block);
  constexpr int kEach = kUnits / 2 / kSide;
  VX run[kSide];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
    for (int r = 0; r < kSide; ++r) {
      v[r] = half == 1 && Block::run == 32 ? run[r] : hn::Zero(d);
#pragma GCC unroll 2
      for (int i = 0; i < kEach; ++i)
        v[r] =
            add_products(v[r], w[r].words[half * kEach + i], dword(x + 32 * half + 4 * i * kSide));
      run[r] = v[r];
    }
    if (half == 0 && Block::run == 32) continue;
    fold(v, lower, upper);
    sums[Block::run == 32 ? 0 : half] = hn::Add(lower, upper);
  }
#endif
}

// sum += a run's part of the output
template <class Block, class V, class I>
HWY_INLINE V add_run(V sum, I integers, V d, V m, const RoundedBlock& x, int t) {
  const hn::DFromV<V> f;
  sum = fused(hn::ConvertTo(f, integers), hn::Mul(d, hn::Set(f, x.s)), sum);
  if constexpr (Block::minimum)
    sum = fused(m, hn::Set(f, Block::run == 32 ? x.total : x.half_total[t]), sum);
  return sum;
}

// Rows of w end after a few hundred bytes, before hardware has seen a stream in them: while some
// are multiplied later ones are asked for, block by block (matmul.cpp, multiply_group).
constexpr int64_t kAhead = 1600;

template <class Block, bool two, int rows>
HWY_INLINE void multiply_side(
    const DigitProblem& p, int64_t row, int64_t m, int64_t first, int64_t count) {
  constexpr int64_t kStep = codes_of_block(two);
  constexpr int kGroups = Block::elements / 32, kRuns = 32 / Block::run;
  const uint8_t *w[kSide], *x[rows];
  const RoundedBlock* blocks[rows];
  VF sum[rows];
#pragma GCC unroll 8
  for (int r = 0; r < kSide; ++r)
    w[r] = p.w + (first + std::min<int64_t>(r, count - 1)) * p.row_bytes;
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
    const int64_t at = row + std::min<int64_t>(i, m - 1);
    x[i] = p.x.codes + at * p.x.row_codes;
    blocks[i] = p.x.blocks + at * (p.x.k / 32);
    sum[i] = hn::Zero(F8());
  }
  const int64_t together = kSide * p.row_bytes;
  const uint8_t* ahead = w[0] + (kAhead + together - 1) / together * together;
  int64_t b = 0;
  for (int64_t c = 0; c < p.x.k; c += Block::elements) {
    const SideFactors<Block> factors(w);
#pragma GCC unroll 1
    for (int g = 0; g < kGroups; ++g, ++b) {
      constexpr int kAsk = kSide * Block::bytes / kGroups;
      ask_for<kAsk>(ahead);
      ahead += kAsk;
      Codes codes[kSide];
#pragma GCC unroll 8
      for (int r = 0; r < kSide; ++r) codes[r] = codes_of<Block>(w[r], g);
#pragma GCC unroll 4
      for (int i = 0; i < rows; ++i) {
        VX sums[kRuns];
        sums_of_runs<Block, two>(codes, x[i] + b * kStep, blocks[i][b], sums);
#pragma GCC unroll 2
        for (int t = 0; t < kRuns; ++t)
          sum[i] = add_run<Block>(sum[i], sums[t], factors.factor(g * kRuns + t),
                                  factors.minimum(g * kRuns + t), blocks[i][b], t);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kSide; ++r) w[r] += Block::bytes;
  }
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
    if (i >= m) break;
    HWY_ALIGN float sums[kSide];
    hn::Store(sum[i], F8(), sums);
    float* y = p.y + (row + i) * p.y_stride + first;
    for (int64_t j = 0; j < count; ++j) y[j] = p.bias ? sums[j] + p.bias[first + j] : sums[j];
  }
}

template <class Block, bool two, int rows>
HWY_INLINE void multiply_sides(const DigitProblem& p, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kSide)
    for (int64_t i = 0; i < p.x.m; i += rows)
      multiply_side<Block, two, rows>(p, i, std::min<int64_t>(rows, p.x.m - i), j,
                                      std::min<int64_t>(kSide, end - j));
}

#if HWY_TARGET == HWY_AVX3_DL
// --- few rows: sixteen columns in the lanes of a vector, whose codes are transposed --------------

// sum + four products: bytes of w times four of x for all lanes
HWY_INLINE VI add_products_of(VI sum, VI w, const uint8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum.raw)
      : "v"(w.raw), "m"(*reinterpret_cast<const int32_t*>(x)));
  return sum;
}
// of `count` words of codes, from `first` on
template <int first, int count>
HWY_INLINE VI sum_of_products(const VI (&codes)[8], const uint8_t* x) {
  // two sums: each waits for itself
  VI even = int_all(0), odd = int_all(0);
#pragma GCC unroll 4
  for (int u = first; u < first + count; u += 2) {
    even = add_products_of(even, codes[u], x + 4 * u);
    odd = add_products_of(odd, codes[u + 1], x + 4 * u + 4);
  }
  return hn::Add(even, odd);
}

// sum += the part of run t of group g, which begins at x and of_x
template <class Block, bool two, int t>
HWY_INLINE V32
add_lanes(V32 sum, const VI (&codes)[8], V32 d, V32 m, const uint8_t* x, const RoundedBlock& of_x) {
  constexpr int kRuns = 32 / Block::run, kEach = 8 / kRuns;
  VI integers = sum_of_products<t * kEach, kEach>(codes, x);
  if constexpr (two)
    integers =
        hn::Add(hn::ShiftLeft<7>(integers), sum_of_products<t * kEach, kEach>(codes, x + 32));
  if constexpr (Block::offset != 0) {
    constexpr int kBits = std::countr_zero(static_cast<unsigned>(Block::offset));
    const VI of_run = hn::Set(I32(), kRuns == 1 ? of_x.sum : of_x.half_sum[t]);
    integers = hn::Sub(integers, hn::ShiftLeft<kBits>(of_run));
  }
  return add_run<Block>(sum, integers, d, m, of_x, t);
}

// y[...][first ... first + kLanes] of one row of x, or of up to kFewRows
template <class Block, bool two, bool one>
HWY_INLINE void multiply_lanes(const DigitProblem& p, int64_t first, bool last) {
  constexpr int64_t kStep = codes_of_block(two);
  constexpr int kGroups = Block::elements / 32, kRuns = 32 / Block::run;
  const int64_t m = one ? 1 : p.x.m, n_blocks = p.x.k / 32;
  LaneRows w(p.w + first * p.row_bytes, p.row_bytes);
  // the next sixteen rows are asked for, block by block, as these are multiplied (multiply_side)
  const uint8_t* ahead = p.w + (first + (last ? 0 : kLanes)) * p.row_bytes;
  const uint8_t* x = p.x.codes;
  const RoundedBlock* blocks = p.x.blocks;
  V32 sum[one ? 1 : kFewRows];
  for (int64_t i = 0; i < m; ++i) sum[i] = zero();
  for (int64_t c = 0; c < p.x.k; c += Block::elements) {
    const LaneBlock<Block> lanes(w);
    lanes.each_group(
        w, [&](auto g, const VI(&codes)[8]) HWY_ATTR __attribute__((always_inline)) {
          constexpr int kAsk = kLanes * Block::bytes / kGroups;
          ask_for<kAsk>(ahead + kAsk * g);
          each_constant<kRuns>([&](auto t) HWY_ATTR __attribute__((always_inline)) {
            constexpr int kRun = g * kRuns + t;
            const V32 d = lanes.template factor<kRun>(), m_of_run = lanes.template minimum<kRun>();
            const auto add = [&](int64_t i) HWY_ATTR __attribute__((always_inline)) {
              sum[i] = add_lanes<Block, two, t>(sum[i], codes, d, m_of_run,
                                                x + i * p.x.row_codes + g * kStep,
                                                blocks[i * n_blocks + g]);
            };
            if constexpr (one) {
              add(0);
            } else {
#pragma GCC unroll 1
              for (int64_t i = 0; i < m; ++i) add(i);
            }
          });
        });
    w.advance(Block::bytes);
    ahead += last ? 0 : kLanes * Block::bytes;
    x += kGroups * kStep;
    blocks += kGroups;
  }
  for (int64_t i = 0; i < m; ++i)
    store(p.bias ? hn::Add(sum[i], load(p.bias + first)) : sum[i], p.y + i * p.y_stride + first);
}

// Not inlined: a function that held those of all types would take the compiler minutes.
template <class Block, bool two>
HWY_NOINLINE void multiply_few(const DigitProblem& p, int64_t begin, int64_t end) {
  if (end - begin < kLanes) return multiply_sides<Block, two, 1>(p, begin, end);
  for (int64_t j = begin; j < end; j += kLanes) {
    // the last ones overlap with those before
    const int64_t first = std::min(j, end - kLanes);
    const bool last = j + kLanes >= end;
    p.x.m == 1 ? multiply_lanes<Block, two, true>(p, first, last)
               : multiply_lanes<Block, two, false>(p, first, last);
  }
}
#else
// Not inlined: a function that held those of all types would take the compiler minutes.
template <class Block, bool two>
HWY_NOINLINE void multiply_few(const DigitProblem& p, int64_t begin, int64_t end) {
  if constexpr (kSide == 8)
    if (p.x.m > 1) return multiply_sides<Block, two, 4>(p, begin, end);
  multiply_sides<Block, two, 1>(p, begin, end);
}
#endif

// --- many rows: a panel of columns, packed once --------------------------------------------------

constexpr int kPanelColumns = 2 * kLanes;
#if HWY_MAX_BYTES == 64
constexpr int kStrip = 6;  // rows of x: 24 sums of 32 registers
#else
constexpr int kStrip = 3;
#endif

// Units of four bytes of codes, and the factors of runs, columns interleaved.
struct CodePanel {
  float* units;  // [k / 32][kUnits][kPanelColumns]
  float *d, *m;  // [k / run][kPanelColumns]
};

template <class Block>
HWY_NOINLINE void pack(const DigitProblem& p, int64_t first, int64_t count, const CodePanel& to) {
  constexpr int kGroups = Block::elements / 32, kRuns = Block::elements / Block::run;
  HWY_ALIGN float units[kPanelColumns][kUnits];
  float *codes = to.units, *d = to.d, *m = to.m;
  const uint8_t* w = p.w + first * p.row_bytes;
  const uint8_t* ahead = w + kPanelColumns * p.row_bytes;
  for (int64_t c = 0; c < p.x.k; c += Block::elements, w += Block::bytes) {
    const auto block = [&](int64_t j) HWY_ATTR { return w + std::min(j, count - 1) * p.row_bytes; };
    factors_of_columns<Block, kPanelColumns>(block, d, m);
    d += kRuns * kPanelColumns;
    m += kRuns * kPanelColumns;
#pragma GCC unroll 1
    for (int g = 0; g < kGroups; ++g, codes += kUnits * kPanelColumns) {
      constexpr int kAsk = kPanelColumns * Block::bytes / kGroups;
      ask_for<kAsk>(ahead);
      ahead += kAsk;
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        const Codes of_column = codes_of<Block>(block(j), g);
        std::memcpy(units[j], &of_column, sizeof of_column);
      }
      for (int64_t j = 0; j < kPanelColumns; j += 4)
        transpose_four_rows(units[j], kUnits, kUnits, codes + j, kPanelColumns);
    }
  }
}

// What of a block type products with a panel depend on.
template <int run_, bool minimum_, bool shifted_>
struct Runs {
  static constexpr int run = run_;
  static constexpr bool minimum = minimum_;
  static constexpr bool shifted = shifted_;  // codes have an offset
};

// y[row ... row + rows][first ... first + count]
template <class Type, bool two, int rows>
HWY_INLINE void multiply_strip(const DigitProblem& p,
                               const CodePanel& panel,
                               int offset,
                               int64_t row,
                               int64_t first,
                               int64_t count) {
  constexpr int64_t kStep = codes_of_block(two);
  constexpr int kRuns = 32 / Type::run, kEach = kUnits / kRuns;
  const int64_t n_blocks = p.x.k / 32;
  const uint8_t* x = p.x.codes + row * p.x.row_codes;
  const RoundedBlock* blocks = p.x.blocks + row * n_blocks;
  const auto* codes = reinterpret_cast<const int32_t*>(panel.units);
  const float *d = panel.d, *m = panel.m;
  V32 sum[rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = zero();
  for (int64_t b = 0; b < n_blocks; ++b, x += kStep) {
#pragma GCC unroll 2
    for (int t = 0; t < kRuns; ++t, codes += kEach * kPanelColumns) {
      VI acc[rows][2];
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) acc[i][0] = acc[i][1] = int_all(0);
#pragma GCC unroll 2
      for (int digit = 0; digit < (kBytewise && two ? 2 : 1); ++digit) {
        if (digit == 1) {
#pragma GCC unroll 8
          for (int i = 0; i < rows; ++i)
            for (VI& of_vector : acc[i]) of_vector = hn::ShiftLeft<7>(of_vector);
        }
#pragma GCC unroll kUnroll
        for (int u = 0; u < kEach; ++u) {
          const VI w0 = hn::Load(I32(), codes + u * kPanelColumns),
                   w1 = hn::Load(I32(), codes + u * kPanelColumns + kLanes);
#pragma GCC unroll 8
          for (int i = 0; i < rows; ++i) {
            const VI xs = four_bytes(x + i * p.x.row_codes + 32 * digit + 4 * (t * kEach + u));
            acc[i][0] = add_products(acc[i][0], w0, xs);
            acc[i][1] = add_products(acc[i][1], w1, xs);
          }
        }
      }
      const V32 d0 = load(d), d1 = load(d + kLanes);
      const V32 m0 = Type::minimum ? load(m) : d0, m1 = Type::minimum ? load(m + kLanes) : d1;
      d += kPanelColumns;
      m += kPanelColumns;
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const RoundedBlock& of_x = blocks[i * n_blocks + b];
        // signed codes of 16 bits have none
        if (kBytewise && Type::shifted) {
          const VI less = int_all(offset * (kRuns == 1 ? of_x.sum : of_x.half_sum[t]));
          for (VI& of_vector : acc[i]) of_vector = hn::Sub(of_vector, less);
        }
        sum[i][0] = add_run<Type>(sum[i][0], acc[i][0], d0, m0, of_x, t);
        sum[i][1] = add_run<Type>(sum[i][1], acc[i][1], d1, m1, of_x, t);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    float* y = p.y + (row + i) * p.y_stride + first;
#pragma GCC unroll 2
    for (int64_t v = 0; v < 2; ++v) {
      const int64_t at = v * kLanes, left = count - at;
      if (left <= 0) break;
      const V32 bias = p.bias ? load_upto(p.bias + first + at, left) : zero();
      store_upto(p.bias ? hn::Add(sum[i][v], bias) : sum[i][v], y + at, left);
    }
  }
}

template <class Type, bool two>
HWY_NOINLINE void multiply_panel(
    const DigitProblem& p, const CodePanel& panel, int offset, int64_t first, int64_t count) {
  int64_t i = 0;
  for (; i + kStrip <= p.x.m; i += kStrip)
    multiply_strip<Type, two, kStrip>(p, panel, offset, i, first, count);
  for (; i + 2 <= p.x.m; i += 2) multiply_strip<Type, two, 2>(p, panel, offset, i, first, count);
  for (; i < p.x.m; ++i) multiply_strip<Type, two, 1>(p, panel, offset, i, first, count);
}

// --- both ----------------------------------------------------------------------------------------

template <class Block, bool two>
HWY_INLINE void multiply_many(const DigitProblem& p, int64_t begin, int64_t end) {
  const int64_t runs = p.x.k / Block::run * kPanelColumns,
                units = p.x.k / 32 * kUnits * kPanelColumns;
  float* memory = scratch<0>(units + 2 * runs);
  const CodePanel panel{memory, memory + units, memory + units + runs};
  for (int64_t j = begin; j < end; j += kPanelColumns) {
    const int64_t count = std::min<int64_t>(kPanelColumns, end - j);
    pack<Block>(p, j, count, panel);
    using Type = Runs<Block::run, Block::minimum, Block::offset != 0>;
    multiply_panel<Type, two>(p, panel, Block::offset, j, count);
  }
}

template <bool two>
HWY_INLINE void multiply_columns(const DigitProblem& p, int64_t begin, int64_t end) {
  with_codes(p.type, [&]<class Block>() HWY_ATTR {
    if constexpr (kPanels)
      if (p.x.m > kFewRows) return multiply_many<Block, two>(p, begin, end);
    multiply_few<Block, two>(p, begin, end);
  });
}

void digit_columns(const DigitProblem& p, int64_t begin, int64_t end) {
  // elsewhere two digits are one number
  if constexpr (kBytewise)
    if (!p.x.int15) return multiply_columns<false>(p, begin, end);
  multiply_columns<true>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(round_range);
HWY_EXPORT(block_codes);
HWY_EXPORT(digit_columns);

bool has_codes(DType type) {
  return is_block_type(type) && type != DType::scaled_e4m3 &&
         (type < DType::iq1_s || type > DType::iq3_s);
}

namespace {

constexpr int64_t kLine = 64;

int64_t lines(int64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

Arithmetic arithmetic_of(DType type, int64_t k, Arithmetic wished) {
  if (has_codes(type)) return wished;
  if (type != DType::bf16 || !bf16_rows_pay(k)) return Arithmetic::float32;
  if (wished == Arithmetic::int8) return Arithmetic::bf16;
  return wished == Arithmetic::int15 && bf16_pairs_pay(k) ? Arithmetic::bf16_pair
                                                          : Arithmetic::float32;
}

int64_t rounded_bytes(int64_t m, int64_t k) {
  const int64_t digits =
      lines(m * k * 2) + lines(m * k / 32 * static_cast<int64_t>(sizeof(RoundedBlock))) + lines(m);
  return std::max(digits, m * bf16_row_bytes(k, 2));
}

RoundedRows rows_to_round(
    const float* x, int64_t m, int64_t k, int64_t x_stride, Arithmetic arithmetic, void* memory) {
  require(arithmetic != Arithmetic::float32, "digits", "no digits to round to");
  require(m >= 0 && k >= 0 && k % 32 == 0, "digits", "m = {}, k = {}: expected whole blocks of 32",
          m, k);
  require(m <= 1 || x_stride >= k, "digits", "stride {}: rows have {}", x_stride, k);
  cap_targets();
  const bool two = arithmetic == Arithmetic::int15;
  const int parts = arithmetic == Arithmetic::bf16_pair ? 2
                    : arithmetic == Arithmetic::bf16    ? 1
                                                        : 0;
  auto* codes = static_cast<uint8_t*>(memory);
  auto* blocks = codes + lines(m * k * 2);
  return {x,
          m,
          k,
          x_stride,
          two,
          arithmetic == Arithmetic::int8_row,
          parts > 0 ? bf16_row_bytes(k, parts) : k / 32 * HWY_DYNAMIC_DISPATCH(block_codes)(two),
          parts,
          codes,
          reinterpret_cast<RoundedBlock*>(blocks),
          blocks + lines(m * k / 32 * static_cast<int64_t>(sizeof(RoundedBlock)))};
}

namespace {

void round_some(const RoundedRows& rows, int64_t begin, int64_t end) {
  if (rows.parts > 0)
    round_to_bf16(rows, begin, end);
  else
    HWY_DYNAMIC_DISPATCH(round_range)(rows, begin, end);
}

}  // namespace

void round(const RoundedRows& rows) {
  round_some(rows, 0, rows.m);
}

RoundedRows round_rows(
    const float* x, int64_t m, int64_t k, int64_t x_stride, Arithmetic arithmetic, void* memory) {
  const RoundedRows rows = rows_to_round(x, m, k, x_stride, arithmetic, memory);
  // a task has at least 2^14 numbers
  parallel_for(m, 1 + (int64_t{1} << 14) / std::max<int64_t>(1, k),
               [&](int64_t begin, int64_t end) { round_some(rows, begin, end); });
  return rows;
}

RoundedRows RoundedRows::some(int64_t first, int64_t count) const {
  RoundedRows rows = *this;
  rows.x += first * x_stride;
  rows.m = count;
  rows.codes += first * row_codes;
  rows.blocks += first * (k / 32);
  rows.finite += first;
  return rows;
}

void digit_matmul(const RoundedRows& x,
                  DType w_type,
                  const void* w,
                  int64_t n,
                  const float* bias,
                  float* y,
                  int64_t y_stride) {
  require(x.parts > 0 ? w_type == DType::bf16 : has_codes(w_type), "digits", "weights of type {}",
          name_of(w_type));
  const DTypeLayout& layout = layout_of(w_type);
  require(n >= 0 && x.k % layout.block_elements == 0, "digits",
          "n = {}, k = {}: expected whole blocks of {} ({})", n, x.k, layout.block_elements,
          layout.name);
  require(x.m <= 1 || y_stride >= n, "digits", "stride {}: rows have {}", y_stride, n);
  if (x.m == 0 || n == 0) return;
  cap_targets();
  if (x.parts > 0) return bf16_matmul(x, w, n, bias, y, y_stride);
  const DigitProblem problem{
      x, w_type, static_cast<const uint8_t*>(w), n, storage_bytes(w_type, x.k), bias, y, y_stride};
  const auto multiply_rest = [&] {
    for (int64_t i = 0; i < x.m; ++i)
      if (x.finite[i] == 0)
        matmul(x.x + i * x.x_stride, 1, x.k, x.k, w_type, w, n, bias, y + i * y_stride, y_stride);
  };
  if (tiles_pay(problem)) {
    multiply_in_tiles(problem);
    return multiply_rest();
  }
  // in tiles that fill the lanes of every target; a task has at least 2^16 multiply-adds
  constexpr int64_t kTile = 32;
  const int64_t grain = 1 + (int64_t{1} << 16) / (kTile * std::max<int64_t>(1, x.k) * x.m);
  parallel_for((n + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(digit_columns)(problem, begin * kTile, std::min(end * kTile, n));
  });
  multiply_rest();
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
