#include "tessera/kernels/basic/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/basic/rope.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

struct Pair {
  V32 a, b;
};

HWY_INLINE Pair rotate(Pair p, V32 c, V32 s) {
  return {hn::Sub(hn::Mul(p.a, c), hn::Mul(p.b, s)), hn::Add(hn::Mul(p.b, c), hn::Mul(p.a, s))};
}

// the vector form's operations one by one: the same bits
HWY_INLINE void rotate_one(float& a, float& b, float c, float s) {
  const float a_new = a * c - b * s;
  b = b * c + a * s;
  a = a_new;
}

HWY_INLINE void rotate_halves(float* x, int64_t half, const float* c, const float* s) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Pair r = rotate({load(x + i), load(x + half + i)}, load(c + i), load(s + i));
    store(r.a, x + i);
    store(r.b, x + half + i);
  }
  for (; i < half; ++i) rotate_one(x[i], x[half + i], c[i], s[i]);
}

HWY_INLINE void rotate_neighbours(float* x, int64_t half, const float* c, const float* s) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    V32 a, b;
    hn::LoadInterleaved2(F32(), x + 2 * i, a, b);
    const Pair r = rotate({a, b}, load(c + i), load(s + i));
    hn::StoreInterleaved2(r.a, r.b, F32(), x + 2 * i);
  }
  for (; i < half; ++i) rotate_one(x[2 * i], x[2 * i + 1], c[i], s[i]);
}

void rope_tokens(float* x,
                 const RopeLayout& layout,
                 const float* cos,
                 const float* sin,
                 int64_t begin,
                 int64_t end) {
  const int64_t half = layout.rotary_dim / 2;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < layout.heads; ++h) {
      float* head = x + t * layout.token_stride + h * layout.head_stride;
      if (layout.interleaved)
        rotate_neighbours(head, half, cos + t * half, sin + t * half);
      else
        rotate_halves(head, half, cos + t * half, sin + t * half);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(rope_tokens);

void rope(float* x, const RopeLayout& layout, const float* cos, const float* sin) {
  require(layout.rotary_dim >= 0 && layout.rotary_dim % 2 == 0, "rope",
          "rotary_dim = {}; expected an even number", layout.rotary_dim);
  cap_targets();
  const int64_t work = layout.heads * layout.rotary_dim;
  parallel_for(layout.tokens, 1 + (1 << 15) / (1 + work), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rope_tokens)(x, layout, cos, sin, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
