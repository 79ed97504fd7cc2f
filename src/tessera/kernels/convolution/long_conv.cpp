#include "tessera/kernels/convolution/long_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/convolution/long_conv.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kRows = 8;  // outputs that share the load of an input

// the inputs that output t meets
HWY_INLINE int64_t met(const LongConv& conv, int64_t t) {
  return std::clamp<int64_t>(conv.start + t + 1, 0, conv.S);
}

// one output, `vectors` whole vectors of channels from c on: inputs and filter as they lie
template <int vectors>
HWY_INLINE void one_row(const LongConv& conv, int64_t t, int64_t c) {
  float* y = conv.y + t * conv.C + c;
  V32 sum[vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) sum[v] = conv.onto ? load(y + v * kLanes) : zero();
  const int64_t n = met(conv, t);
  for (int64_t s = 0; s < n; ++s) {
    const float* z = conv.z + s * conv.z_stride + c;
    const float* k = conv.k + (conv.start + t - s) * conv.k_stride + c;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sum[v] = hn::MulAdd(load(z + v * kLanes), load(k + v * kLanes), sum[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) store(sum[v], y + v * kLanes);
}

HWY_INLINE void last_channels(const LongConv& conv, int64_t t, int64_t c, int64_t count) {
  float* y = conv.y + t * conv.C + c;
  V32 sum = conv.onto ? load_part(y, count) : zero();
  const int64_t n = met(conv, t);
  for (int64_t s = 0; s < n; ++s)
    sum = hn::MulAdd(load_part(conv.z + s * conv.z_stride + c, count),
                     load_part(conv.k + (conv.start + t - s) * conv.k_stride + c, count), sum);
  store_part(sum, y, count);
}

// channels [begin, end) of a few outputs
void few_rows(const LongConv& conv, int64_t begin, int64_t end) {
  for (int64_t t = 0; t < conv.T; ++t) {
    int64_t c = begin;
    for (; c + 4 * kLanes <= end; c += 4 * kLanes) one_row<4>(conv, t, c);
    for (; c + kLanes <= end; c += kLanes) one_row<1>(conv, t, c);
    if (c < end) last_channels(conv, t, c, end - c);
  }
}

// what the inputs [from, to) add to the outputs t .. t + rows of the channels from c on; z and k
// lie packed, a vector a row
template <int rows>
HWY_INLINE void packed_rows(const LongConv& conv,
                            const float* z,
                            const float* k,
                            int64_t t,
                            int64_t c,
                            int64_t from,
                            int64_t to) {
  const int64_t count = std::min<int64_t>(kLanes, conv.C - c);
  const bool onto = conv.onto || from > 0;
  V32 sum[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    sum[r] = onto ? load_upto(conv.y + (t + r) * conv.C + c, count) : zero();
  // what all of them meet, then what only the later ones do
  const int64_t shared = std::clamp(met(conv, t), from, to);
  for (int64_t s = from; s < shared; ++s) {
    const V32 input = hn::Load(F32(), z + s * kLanes);
    const float* taps = k + (conv.start + t - s) * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      sum[r] = hn::MulAdd(input, hn::Load(F32(), taps + r * kLanes), sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const int64_t n = std::min(met(conv, t + r), to);
    for (int64_t s = shared; s < n; ++s)
      sum[r] = hn::MulAdd(hn::Load(F32(), z + s * kLanes),
                          hn::Load(F32(), k + (conv.start + t + r - s) * kLanes), sum[r]);
    store_upto(sum[r], conv.y + (t + r) * conv.C + c, count);
  }
}

// channels [begin, end) of many outputs. A vector of channels is packed first: rows are often a
// power of two apart, which few sets of a cache hold.
void many_rows(const LongConv& conv, int64_t begin, int64_t end) {
  constexpr int64_t kTile = 256;  // inputs that stay in the first cache level with their taps
  const int64_t taps = std::max<int64_t>(0, conv.start + conv.T);
  float* z = scratch<13>((conv.S + taps) * kLanes);
  float* k = z + conv.S * kLanes;
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, end - c);
    for (int64_t s = 0; s < conv.S; ++s)
      hn::Store(load_upto(conv.z + s * conv.z_stride + c, count), F32(), z + s * kLanes);
    for (int64_t s = 0; s < taps; ++s)
      hn::Store(load_upto(conv.k + s * conv.k_stride + c, count), F32(), k + s * kLanes);
    for (int64_t from = 0; from == 0 || from < conv.S; from += kTile) {
      const int64_t to = std::min(from + kTile, conv.S);
      // outputs before it meet nothing of a tile; the first one sets them all
      int64_t t = from == 0 ? 0 : std::clamp<int64_t>(from - conv.start, 0, conv.T);
      for (; t + kRows <= conv.T; t += kRows) packed_rows<kRows>(conv, z, k, t, c, from, to);
      for (; t < conv.T; ++t) packed_rows<1>(conv, z, k, t, c, from, to);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(few_rows);
HWY_EXPORT(many_rows);

void long_conv(const LongConv& conv) {
  cap_targets();
  const bool many = conv.T >= 8;
  // borders on multiples of 16 channels keep vectors whole
  const int64_t block = many ? 16 : 64;
  const int64_t grain = 1 + (int64_t{1} << 14) / (1 + conv.T * conv.S * block);
  parallel_for((conv.C + block - 1) / block, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * block, last = std::min(conv.C, end * block);
    if (many)
      HWY_DYNAMIC_DISPATCH(many_rows)(conv, first, last);
    else
      HWY_DYNAMIC_DISPATCH(few_rows)(conv, first, last);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
