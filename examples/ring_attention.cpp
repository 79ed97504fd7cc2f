// Attention of one sequence by the ranks of a ring: what each layout gives whom to do at every
// step, that the result is that of a single rank, and how large a message is.
//   ring_attention [TOKENS] [RANKS]
// A distributed program is ops::ring_forward with one RingRank and a transport of its own in place
// of ops::LocalRing.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tessera/ops/attention/ring_attention.h"

using namespace tessera;

int main(int argc, char** argv) try {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 1024;
  const int64_t ranks = argc > 2 ? std::atoll(argv[2]) : 4;
  constexpr int64_t kHeads = 8, kKeyHeads = 2, kWidth = 64;
  const auto waves = [&](int64_t heads, double rate) {
    const int64_t n = tokens * heads * kWidth;
    return at::sin(at::arange(n, at::kDouble) * rate)
        .to(at::kFloat)
        .reshape({1, tokens, heads, kWidth});
  };
  const Tensor q = waves(kHeads, 0.737), k = waves(kKeyHeads, 1.531), v = waves(kKeyHeads, 2.711);
  ops::ScoreOptions causal;
  causal.scale = 1 / std::sqrt(static_cast<double>(kWidth));
  const Tensor want = ops::attention_equal(q, k, v, causal);

  using Layout = ops::RingLayout;
  for (const auto& [name, layout] :
       {std::pair{"ring (contiguous)", Layout::contiguous}, std::pair{"zigzag", Layout::zigzag},
        std::pair{"striped", Layout::striped}}) {
    const ops::RingOrder order(tokens, ranks, layout);
    const Tensor got = ops::ring_attention(q, k, v, order, causal).out;
    std::printf("%s: largest difference to one rank %.1e, %.1f kB a message\n", name,
                (got - want).abs().max().item<double>(),
                static_cast<double>(order.rows() * kKeyHeads * kWidth * 2 * 4) / 1e3);
    // a step lasts as long as its busiest rank
    int64_t slowest = 0, all = 0;
    for (int64_t s = 0; s < ranks; ++s) {
      std::printf("  step %2lld: queries times keys by rank", static_cast<long long>(s));
      int64_t most = 0;
      for (int64_t a = 0; a < ranks; ++a) {
        const int64_t work = order.work(a, s, causal);
        std::printf(" %9lld", static_cast<long long>(work));
        most = std::max(most, work);
        all += work;
      }
      slowest += most;
      std::printf("\n");
    }
    std::printf("  busy: %.0f %%\n",
                100.0 * static_cast<double>(all) / static_cast<double>(slowest * ranks));
  }
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
