#include "tessera/kernels/basic/rope.h"

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::rope_test {
namespace {

TEST(Rope, BothLayoutsEqualThePlainFormula) {
  for (const int64_t half : {1, 3, 4, 7, 8, 9, 32, 33})
    for (const bool interleaved : {false, true})
      for (const int64_t offset : {0, 1, 3}) {
        const int64_t tokens = 5, heads = 3, d = 2 * half + 3;  // three values stay as they are
        const Values x(tokens * heads * d, 1, 1, offset), c(tokens * half, 2), s(tokens * half, 3);
        std::vector<float> want(x.data(), x.data() + x.size());
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < half; ++i) {
              float* head = want.data() + (t * heads + h) * d;
              float& a = head[interleaved ? 2 * i : i];
              float& b = head[interleaved ? 2 * i + 1 : i + half];
              const float a0 = a, b0 = b, cos = c[t * half + i], sin = s[t * half + i];
              a = a0 * cos - b0 * sin;
              b = b0 * cos + a0 * sin;
            }
        on_every_target([&] {
          Values y = x;
          rope(y.data(), {tokens, heads, d, heads * d, 2 * half, interleaved}, c.data(), s.data());
          expect_same_bits(y.data(), want.data(), x.size(),
                           fmt::format("half {} interleaved {}", half, interleaved));
        });
      }
}

TEST(Rope, RefusesOddRotaryDim) {
  float x = 0;
  EXPECT_THROW(rope(&x, {1, 1, 1, 1, 1, false}, &x, &x), Error);
}

}  // namespace
}  // namespace tessera::kernels::rope_test
