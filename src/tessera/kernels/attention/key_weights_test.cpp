#include "tessera/kernels/attention/key_weights.h"

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::key_weights_test {
namespace {

/// 280 queries behind 20 keys, 6 heads on 2.
struct Prompt {
  static constexpr int64_t kQueries = 280, kBefore = 20, kKeys = kQueries + kBefore, H = 6, G = 2,
                           K = 24, V = 8, kFirst = 3;
  Values q{kQueries * H * K, 1}, k{kKeys * G * K, 2}, v{kKeys * G * V, 3};
  Values sinks{H, 4};
  std::vector<std::vector<uint8_t>> memory;
  std::vector<KeySpan> spans;
  std::vector<float> out = std::vector<float>(at(kQueries * H * V)),
                     softmax = std::vector<float>(at(kQueries * H * 2));

  /// Keys of `type` in pages of `page` tokens, positions from kFirst.
  explicit Prompt(DType type = DType::f32, int64_t page = 64) {
    const int64_t k_row = kv_row_bytes(type, K), v_row = kv_row_bytes(type, V);
    for (int64_t from = 0; from < kKeys; from += page) {
      const int64_t n = std::min(page, kKeys - from);
      const auto fill = [&](const Values& all, int64_t width, int64_t row) {
        auto& bytes = memory.emplace_back(at(n * G * row));
        write_kv_rows(type, all.data() + from * G * width, n * G, width, bytes.data());
        return bytes.data();
      };
      const void* keys = fill(k, K, k_row);
      const void* values = fill(v, V, v_row);
      spans.push_back({keys, values, G * k_row, k_row, G * v_row, v_row, kFirst + from, n, type});
    }
  }

  /// Queries [begin, end).
  Attention part(int64_t begin, int64_t end) {
    Attention a;
    a.T = end - begin, a.H = H, a.G = G, a.K = K, a.V = V;
    a.q = q.data() + begin * H * K, a.q_token_stride = H * K, a.q_head_stride = K;
    a.out = out.data() + begin * H * V, a.out_token_stride = H * V, a.out_head_stride = V;
    a.first_position = kFirst + kBefore + begin;
    a.kv = {spans.data(), static_cast<int64_t>(spans.size())};
    a.scale = 0.3f;
    a.softmax = softmax.data();
    return a;
  }
};

constexpr int64_t kSums = Prompt::G * Prompt::kKeys;

void add(const Attention& a, std::vector<float>& sums) {
  attend(a);
  add_key_weights(a, sums.data(), Prompt::kKeys);
}

/// The definition, in double.
std::vector<double> weights_ref(const Attention& a) {
  std::vector<double> sums(at(kSums));
  std::vector<float> keys(at(kSums * a.K));
  for (int64_t s = 0; s < a.kv.size; ++s)
    for (int64_t j = 0; j < a.kv.spans[s].count; ++j)
      for (int64_t g = 0; g < a.G; ++g) {
        const KeySpan& span = a.kv.spans[s];
        read_kv_row(
            span.type,
            static_cast<const char*>(span.k) + j * span.k_token_stride + g * span.k_head_stride,
            a.K, keys.data() + (g * Prompt::kKeys + span.first - Prompt::kFirst + j) * a.K);
      }
  for (int64_t i = 0; i < a.T; ++i)
    for (int64_t h = 0; h < a.H; ++h) {
      const int64_t g = h / (a.H / a.G), p = a.first_position + i - Prompt::kFirst;
      std::vector<double> e(at(Prompt::kKeys));
      double sum = a.sinks != nullptr ? std::exp(static_cast<double>(a.sinks[h])) : 0;
      for (int64_t j = a.window > 0 ? std::max<int64_t>(0, p - a.window + 1) : 0; j <= p; ++j) {
        double score = 0;
        for (int64_t c = 0; c < a.K; ++c)
          score += static_cast<double>(a.q[i * a.q_token_stride + h * a.q_head_stride + c]) *
                   static_cast<double>(keys[at((g * Prompt::kKeys + j) * a.K + c)]);
        score *= static_cast<double>(a.scale);
        if (a.softcap > 0)
          score =
              static_cast<double>(a.softcap) * std::tanh(score / static_cast<double>(a.softcap));
        sum += e[at(j)] = std::exp(score);
      }
      for (int64_t j = 0; j <= p; ++j) sums[at(g * Prompt::kKeys + j)] += e[at(j)] / sum;
    }
  return sums;
}

TEST(KeyWeights, AgainstTheDefinition) {
  for (const DType type : {DType::f32, DType::f16, DType::i8, DType::u8}) {
    Prompt prompt(type);
    for (const int extra : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(type), extra));
      Attention a = prompt.part(0, Prompt::kQueries);
      if (extra == 1) a.softcap = 0.7f;
      if (extra == 2) a.sinks = prompt.sinks.data();
      if (extra == 3) a.window = 100;
      const auto want = weights_ref(a);
      on_every_target([&] {
        std::vector<float> sums(at(kSums));
        add(a, sums);
        expect_near(sums.data(), want.data(), kSums, 1e-5, 1e-6);
      });
    }
  }
}

TEST(KeyWeights, SameBitsForAnySplitThreadsAndPages) {
  Prompt prompt, one_piece(DType::f32, Prompt::kKeys);
  on_every_target([&] {
    std::vector<float> whole(at(kSums));
    {
      const Threads one(1);
      add(prompt.part(0, Prompt::kQueries), whole);
    }
    for (const auto& [step, threads] : {std::pair<int64_t, int>{1, 1}, {5, 2}, {64, 3}, {257, 2}}) {
      const Threads scope(threads);
      std::vector<float> split(at(kSums));
      Prompt& of = threads == 3 ? one_piece : prompt;
      for (int64_t t = 0; t < Prompt::kQueries; t += step)
        add(of.part(t, std::min(t + step, Prompt::kQueries)), split);
      expect_same_bits(split.data(), whole.data(), kSums,
                       fmt::format("steps of {}, {} threads", step, threads));
    }
  });
}

TEST(KeyWeights, AsksForTheSoftmaxAndNoPattern) {
  Prompt prompt;
  std::vector<float> sums(at(kSums));
  Attention a = prompt.part(0, 1);
  a.softmax = nullptr;
  test::expect_error(ErrorKind::internal, "without its softmax",
                     [&] { add_key_weights(a, sums.data(), Prompt::kKeys); });
  a = prompt.part(0, 1);
  a.bias = sums.data();
  test::expect_error(ErrorKind::internal, "or with a pattern or a bias",
                     [&] { add_key_weights(a, sums.data(), Prompt::kKeys); });
}

}  // namespace
}  // namespace tessera::kernels::key_weights_test
