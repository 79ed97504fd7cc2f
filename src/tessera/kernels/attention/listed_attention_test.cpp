#include "tessera/kernels/attention/listed_attention.h"

#include <limits>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::listed_attention_test {
namespace {

TEST(ListedAttention, OddSizesAgainstDouble) {
  constexpr int64_t T = 3, H = 4, G = 2, S = 20;
  for (const int64_t L : {int64_t{1}, G})
    for (const int64_t K : {1, 7, 8, 33})
      for (const int64_t V : {1, 9, 16}) {
        const Values q(T * H * K, 1), k(2 * S * G * K, 2), v(2 * S * G * V, 3);
        std::vector<ListedKey> keys;
        std::vector<int64_t> ends;
        for (int64_t list = 0; list < T * L; ++list) {
          // lists of 0, 7, 14, .. keys of both memories
          for (int64_t j = 0; j < 7 * list; ++j)
            keys.push_back({static_cast<int32_t>(j % 2), static_cast<int32_t>((5 * j + list) % S),
                            0.1 * static_cast<double>(j % 3)});
          ends.push_back(static_cast<int64_t>(keys.size()));
        }
        std::vector<double> want(at(T * H * V), 0.0), want_lse(at(T * H));
        for (int64_t t = 0; t < T; ++t)
          for (int64_t h = 0; h < H; ++h) {
            const int64_t g = h / 2, list = t * L + (L == 1 ? 0 : g);
            double total = 0;
            for (int64_t j = list == 0 ? 0 : ends[at(list - 1)]; j < ends[at(list)]; ++j) {
              const ListedKey& key = keys[at(j)];
              const int64_t row = (key.source * S + key.index) * G + g;
              double score = 0;
              for (int64_t c = 0; c < K; ++c)
                score += static_cast<double>(q[(t * H + h) * K + c]) *
                         static_cast<double>(k[row * K + c]);
              const double weight = std::exp(score * 0.5 + key.bias);
              total += weight;
              for (int64_t c = 0; c < V; ++c)
                want[at((t * H + h) * V + c)] += weight * static_cast<double>(v[row * V + c]);
            }
            for (int64_t c = 0; c < V; ++c)
              if (total > 0) want[at((t * H + h) * V + c)] /= total;
            want_lse[at(t * H + h)] = std::log(total);
          }
        on_every_target([&] {
          const KeySource sources[] = {
              {k.data(), v.data(), G * K, K, G * V, V},
              {k.data() + S * G * K, v.data() + S * G * V, G * K, K, G * V, V}};
          std::vector<float> out(at(T * H * V), -1.0f), lse(at(T * H));
          listed_attention({T, H, G, K, V, q.data(), sources, keys.data(), ends.data(), L, 0.5f,
                            out.data(), lse.data()});
          expect_near(out.data(), want.data(), T * H * V, 2e-5, 2e-6);
          for (int64_t i = 0; i < T * H; ++i)
            if (std::isinf(want_lse[at(i)])) {
              EXPECT_EQ(lse[at(i)], -std::numeric_limits<float>::infinity());
            } else {
              EXPECT_NEAR(lse[at(i)], want_lse[at(i)], 2e-5);
            }
        });
      }
}

}  // namespace
}  // namespace tessera::kernels::listed_attention_test
