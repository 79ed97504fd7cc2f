#include "tessera/kernels/scan/channel_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/channel_scan.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Time outside, channels inside: rows are read in the order of memory, and chains of neighbouring
// channels overlap. The state before a token is the row of y before it.
void scan_channels(const ChannelScan& s, int64_t begin, int64_t end) {
  const float* before = s.state;
  for (int64_t t = 0; t < s.T; ++t) {
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t at = t * s.W + c, count = std::min<int64_t>(kLanes, end - c);
      const V32 h = hn::MulAdd(load_upto(s.a + at, count), load_upto(before + c, count),
                               load_upto(s.b + at, count));
      store_upto(h, s.y + at, count);
    }
    before = s.y + t * s.W;
  }
  if (s.T > 0) std::copy_n(before + begin, end - begin, s.state + begin);
}

// G_t = dy_t + a_{t+1} G_{t+1}, whose second term dstate carries:  db = G;  da = G h_{t-1}
void scan_channels_backward(const ChannelScanGradient& d, int64_t begin, int64_t end) {
  for (int64_t t = d.T - 1; t >= 0; --t) {
    const float* before = t > 0 ? d.y + (t - 1) * d.W : d.start;
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t at = t * d.W + c, count = std::min<int64_t>(kLanes, end - c);
      const V32 grad = hn::Add(load_upto(d.dy + at, count), load_upto(d.dstate + c, count));
      const V32 h = before != nullptr ? load_upto(before + c, count) : zero();
      store_upto(grad, d.db + at, count);
      store_upto(hn::Mul(grad, h), d.da + at, count);
      store_upto(hn::Mul(grad, load_upto(d.a + at, count)), d.dstate + c, count);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(scan_channels);
HWY_EXPORT(scan_channels_backward);

void channel_scan(const ChannelScan& s, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(scan_channels)(s, begin, end);
}

void channel_scan(const ChannelScan& s) {
  // borders on 16 channels keep vectors whole
  constexpr int64_t kBlock = 16;
  const int64_t grain = 1 + (int64_t{1} << 14) / (1 + s.T * kBlock);
  parallel_for((s.W + kBlock - 1) / kBlock, grain, [&](int64_t begin, int64_t end) {
    channel_scan(s, begin * kBlock, std::min(s.W, end * kBlock));
  });
}

void channel_scan_backward(const ChannelScanGradient& d, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(scan_channels_backward)(d, begin, end);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
