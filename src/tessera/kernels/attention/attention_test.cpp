#include "tessera/kernels/attention/attention.h"

#include <hwy/aligned_allocator.h>

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/attention/kv_rows.h"

namespace tessera::kernels::attention_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int64_t kFloat = sizeof(float);

/// Keys [n, G, K] and values [n, G, V] of floats, of positions from `first`.
KeySpan span_of(
    const float* k, const float* v, int64_t G, int64_t K, int64_t V, int64_t first, int64_t n) {
  return {k, v, G * K * kFloat, K * kFloat, G * V * kFloat, V * kFloat, first, n, DType::f32};
}

// q [T,H,K], k [S,G,K], v [S,G,V], out [T,H,V], all dense, positions from 0
struct Case {
  int64_t T, S, H, G, K, V;
  Values q, k, v;
  std::vector<KeySpan> spans;

  Case(int64_t t, int64_t s, int64_t h, int64_t g, int64_t kd, int64_t vd, int64_t offset = 0)
      : T(t),
        S(s),
        H(h),
        G(g),
        K(kd),
        V(vd),
        q(t * h * kd, 1, 1, offset),
        k(s * g * kd, 2, 1, offset),
        v(s * g * vd, 3, 1, offset) {}

  /// Copies of a case point to their own keys.
  Attention attention(float* out) {
    Attention a;
    a.T = T;
    a.H = H;
    a.G = G;
    a.K = K;
    a.V = V;
    a.q = q.data();
    a.q_token_stride = H * K;
    a.q_head_stride = K;
    a.out = out;
    a.out_token_stride = H * V;
    a.out_head_stride = V;
    a.first_position = S - T;
    spans = {span_of(k.data(), v.data(), G, K, V, 0, S)};
    a.kv = {spans.data(), 1};
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(K)));
    return a;
  }
  int64_t size() const { return T * H * V; }
};

/// The numbers of a stored row, in double.
std::vector<double> row_of(DType type, const void* base, int64_t bytes, int64_t width) {
  std::vector<float> row(at(width));
  read_kv_row(type, static_cast<const char*>(base) + bytes, width, row.data());
  return {row.begin(), row.end()};
}

// the definition, in double, of keys in one span
std::vector<double> attend_ref(const Attention& a) {
  const KeySpan& span = a.kv.spans[0];
  std::vector<double> out;
  for (int64_t i = 0; i < a.T; ++i)
    for (int64_t h = 0; h < a.H; ++h) {
      const int64_t g = h / (a.H / a.G), p = a.first_position + i;
      std::vector<double> logits;
      double max = a.sinks ? static_cast<double>(a.sinks[h]) : -kInfinity;
      for (int64_t j = 0; j < span.count; ++j) {
        const int64_t position = span.first + j;
        const bool visible =
            (!a.causal || position <= p) &&
            (a.window == 0 || (position > p - a.window && (a.causal || position < p + a.window)));
        double s = 0;
        const auto key =
            row_of(span.type, span.k, j * span.k_token_stride + g * span.k_head_stride, a.K);
        for (int64_t c = 0; c < a.K; ++c)
          s +=
              static_cast<double>(a.q[i * a.q_token_stride + h * a.q_head_stride + c]) * key[at(c)];
        s *= static_cast<double>(a.scale);
        if (a.softcap > 0)
          s = static_cast<double>(a.softcap) * std::tanh(s / static_cast<double>(a.softcap));
        if (a.bias)
          s += static_cast<double>(a.bias[h * a.bias_head_stride + i * a.bias_query_stride + j]);
        logits.push_back(visible ? s : -kInfinity);
        max = std::max(max, logits.back());
      }
      double sum = a.sinks ? std::exp(static_cast<double>(a.sinks[h]) - max) : 0;
      std::vector<double> o(at(a.V));
      for (int64_t j = 0; j < span.count; ++j) {
        if (logits[at(j)] == -kInfinity) continue;
        const double e = std::exp(logits[at(j)] - max);
        sum += e;
        const auto value =
            row_of(span.type, span.v, j * span.v_token_stride + g * span.v_head_stride, a.V);
        for (int64_t c = 0; c < a.V; ++c) o[at(c)] += e * value[at(c)];
      }
      for (const double value : o) out.push_back(sum > 0 ? value / sum : 0);
    }
  return out;
}

TEST(Attention, SpecifiedCore) {
  const auto q = sines(8, 0.7, 0.1), k = sines(8, 0.5, 0.3), v = sines(8, 0.9, 0.2);
  const auto run = [&](auto&& change) {
    Attention a;
    std::vector<float> out(8);
    a.T = 4, a.H = 1, a.G = 1, a.K = 2, a.V = 2;
    a.q = q.data(), a.q_token_stride = 2, a.out = out.data(), a.out_token_stride = 2;
    const KeySpan span = span_of(k.data(), v.data(), 1, 2, 2, 0, 4);
    a.kv = {&span, 1};
    a.scale = static_cast<float>(1 / std::sqrt(2.0));
    change(a);
    attend(a);
    return out;
  };
  const double rows[] = {0.1986693308, 0.8912073601,  0.6603813194,  0.4676147093,
                         0.1212608142, -0.0239336695, -0.3409657827, 0.1313776331};
  const double capped[] = {-0.1897397918, 0.1179163560}, sunk[] = {-0.2376393297, 0.0915648850};
  const double windowed[] = {-0.6268675619, -0.0602747904}, alibi[] = {-0.5140860712, 0.0858283982};
  const float sink = 0.25;
  const float slope[] = {-1.5, -1, -0.5, 0};  // of row 3: 0.5 (j - 3)
  on_every_target([&] {
    expect_near(run([](Attention&) {}).data(), rows, 8, 0, 2e-7);
    expect_near(run([](Attention& a) { a.softcap = 0.5; }).data() + 6, capped, 2, 0, 2e-7);
    expect_near(run([&](Attention& a) { a.sinks = &sink; }).data() + 6, sunk, 2, 0, 2e-7);
    expect_near(run([](Attention& a) { a.window = 2; }).data() + 6, windowed, 2, 0, 2e-7);
    expect_near(run([&](Attention& a) { a.bias = slope; }).data() + 6, alibi, 2, 0, 2e-7);
  });
}

TEST(Attention, SpecifiedGroupedHeads) {
  const auto q = sines(24, 0.37, 0.11), k = sines(12, 0.53, 0.29), v = sines(12, 0.71, 0.05);
  const double want[] = {0.04997916927, 0.6889214451,  0.6411554316,  0.7709917949,  0.5654390168,
                         0.4787215197,  0.04997916927, 0.6889214451,  0.5198192052,  0.7541472307,
                         0.3494293079,  0.2491768509,  -0.9201280538, -0.9530596307, -0.6774824781,
                         -0.2711967126, -0.2036079928, 0.1027325419,  -0.9201280538, -0.9530596307,
                         -0.7774982174, -0.5522528319, -0.1454217444, 0.08933057269};
  on_every_target([&] {
    std::vector<float> out(24);
    Attention a;  // head-major: a head's tokens lie together
    a.T = 3, a.H = 4, a.G = 2, a.K = 2, a.V = 2;
    a.q = q.data(), a.q_token_stride = 2, a.q_head_stride = 6;
    a.out = out.data(), a.out_token_stride = 2, a.out_head_stride = 6;
    const KeySpan span{k.data(), v.data(), 2 * kFloat, 6 * kFloat, 2 * kFloat, 6 * kFloat, 0, 3};
    a.kv = {&span, 1};
    a.scale = static_cast<float>(1 / std::sqrt(2.0));
    attend(a);
    expect_near(out.data(), want, 24, 0, 2e-7);
  });
}

TEST(Attention, OddSizesAgainstDouble) {
  for (const int64_t K : {1, 7, 8, 9, 63, 64, 65})
    for (const int64_t S : {1, 7, 65, 300}) {
      const int64_t T = std::min<int64_t>(S, 9);
      Case c(T, S, 6, 2, K, K + 3, K % 4);
      std::vector<float> out(at(c.size() + 1), 8.0f);
      const Attention a = c.attention(out.data());
      const auto want = attend_ref(a);
      on_every_target([&] {
        attend(a);
        expect_near(out.data(), want.data(), c.size(), 0, 3e-6);
        EXPECT_EQ(out.back(), 8.0f) << "wrote past the end";
      });
    }
}

TEST(Attention, EveryOptionAgainstDouble) {
  Case c(70, 600, 4, 2, 16, 24);
  const Values bias(4 * 70 * 600, 5), sinks(4, 6);
  std::vector<float> out(at(c.size()));
  for (const bool causal : {true, false})
    for (const int64_t window : {0, 1, 5, 200, 1000})
      for (const int extra : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("causal {} window {} extra {}", causal, window, extra));
        Attention a = c.attention(out.data());
        a.causal = causal;
        a.window = window;
        if (extra == 1) a.softcap = 0.7f;
        if (extra == 2) a.sinks = sinks.data();
        if (extra == 3)
          a.bias = bias.data(), a.bias_head_stride = 70 * 600, a.bias_query_stride = 600;
        if (!causal) a.first_position = 250;
        const auto want = attend_ref(a);
        for (const std::string& name : {available_targets().front(), available_targets().back()}) {
          const TargetScope scope(name);
          attend(a);
          expect_near(out.data(), want.data(), c.size(), 0, 3e-6);
        }
      }
}

// A prompt in one call is the measure for the tests below: 700 keys are three blocks.
constexpr int64_t kPrompt = 700;

struct Prompt : Case {
  Prompt() : Case(kPrompt, kPrompt, 6, 2, 40, 24) {}
  // queries begin .. end against the keys up to them
  Attention part(int64_t begin, int64_t end, int64_t window, std::vector<float>& out) {
    Attention a = attention(out.data() + begin * H * V);
    a.T = end - begin;
    a.q += begin * a.q_token_stride;
    a.first_position = begin;
    spans[0].count = end;
    a.window = window;
    return a;
  }
};

TEST(Attention, SameBitsForAnySplitAndThreads) {
  Prompt c;
  for (const int64_t window : {0, 100})
    on_every_target([&] {
      std::vector<float> whole(at(c.size())), split(at(c.size()));
      const auto run = [&](int64_t begin, int64_t end, int threads, std::vector<float>& out) {
        const Threads scope(threads);
        attend(c.part(begin, end, window, out));
      };
      run(0, kPrompt, 1, whole);
      run(0, kPrompt, 2, split);
      expect_same_bits(split.data(), whole.data(), c.size(), "two threads");
      for (const int64_t step : {5, 64, 257}) {
        std::fill(split.begin(), split.end(), 0.0f);
        for (int64_t t = 0; t < kPrompt; t += step)
          run(t, std::min(t + step, kPrompt), 1 + t % 2, split);
        expect_same_bits(split.data(), whole.data(), c.size(), fmt::format("steps of {}", step));
      }
      // one query alone, by tiles (one thread) and by blocks of keys (two)
      const int64_t row = c.H * c.V;
      for (const int64_t t : {0, 1, 99, 100, 255, 256, 257, 511, 512, 513, 600, 698, 699})
        for (const int threads : {1, 2}) {
          std::fill(split.begin(), split.end(), 0.0f);
          run(t, t + 1, threads, split);
          expect_same_bits(split.data() + t * row, whole.data() + t * row, row,
                           fmt::format("query {}", t));
        }
    });
}

/// Keys and values of a case in pages that lie anywhere, stored as `type`; NaN behind the last one.
struct Pages {
  std::vector<std::vector<uint8_t>> memory;
  std::vector<KeySpan> spans;

  Pages(const Case& c, int64_t first, int64_t end, int64_t page, DType type = DType::f32) {
    const int64_t k_row = kv_row_bytes(type, c.K), v_row = kv_row_bytes(type, c.V);
    for (int64_t from = first; from < end; from += page) {
      const int64_t n = std::min(page, end - from);
      const auto fill = [&](const Values& all, int64_t width, int64_t row) {
        auto& bytes = memory.emplace_back(at(page * c.G * row), uint8_t{0xff});
        write_kv_rows(type, all.data() + from * c.G * width, n * c.G, width, bytes.data());
        return bytes.data();
      };
      const void* k = fill(c.k, c.K, k_row);
      const void* v = fill(c.v, c.V, v_row);
      spans.push_back({k, v, c.G * k_row, k_row, c.G * v_row, v_row, from, n, type});
    }
  }
  KeyValueView view() const { return {spans.data(), static_cast<int64_t>(spans.size())}; }
};

TEST(Attention, SameBitsInPages) {
  Prompt c;
  for (const int64_t window : {0, 100})
    on_every_target([&] {
      std::vector<float> linear(at(c.size())), paged(at(c.size()));
      for (const int64_t begin : {0, 300, 690}) {
        const Attention a = c.part(begin, kPrompt, window, linear);
        attend(a);
        // only what the window needs
        const int64_t first = window > 0 ? std::max<int64_t>(0, begin - window + 1) : 0;
        for (const int64_t page : {1, 2, 16, 64, 300, 1000})
          for (const int threads : {1, 3}) {
            const Threads scope(threads);
            const Pages pages(c, first, kPrompt, page);
            Attention b = a;
            b.out = paged.data() + begin * c.H * c.V;
            b.kv = pages.view();
            attend(b);
            expect_same_bits(b.out, a.out, (kPrompt - begin) * c.H * c.V,
                             fmt::format("pages of {}, {} threads", page, threads));
          }
      }
    });
}

TEST(Attention, StoredKeysAndValuesAgainstDouble) {
  for (const DType type : {DType::f16, DType::bf16, DType::i8, DType::u8, DType::i16})
    for (const int64_t K : {1, 7, 16, 40, 65}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(type), K));
      Case c(9, 300, 6, 2, K, K + 3);
      const Pages whole(c, 0, 300, 300, type);
      std::vector<float> out(at(c.size()));
      Attention a = c.attention(out.data());
      const auto exact = attend_ref(a);
      a.kv = whole.view();
      for (const int extra : {0, 1}) {
        a.softcap = extra == 1 ? 0.7f : 0;
        const auto want = attend_ref(a);
        on_every_target([&] {
          attend(a);
          expect_near(out.data(), want.data(), c.size(), 0, 1e-5);
        });
        // and what is kept of the numbers is near them, but not they
        double worst = 0;
        for (size_t i = 0; i < want.size(); ++i)
          worst = std::max(worst, std::abs(want[i] - exact[i]));
        if (extra == 0) {
          EXPECT_LT(worst, type == DType::u8 ? 0.2 : type == DType::i16 ? 0.3 : 0.05);
          EXPECT_GT(worst, 1e-6);
        }
      }
    }
}

TEST(Attention, SameBitsStored) {
  Prompt c;
  const int64_t row = c.H * c.V;
  for (const DType type : {DType::bf16, DType::i8, DType::u8, DType::i16})
    on_every_target([&] {
      std::vector<float> whole(at(c.size())), split(at(c.size()));
      const auto run = [&](int64_t begin, int64_t end, int64_t page, int threads, auto& out) {
        const Threads scope(threads);
        const Pages pages(c, 0, end, page, type);
        Attention a = c.part(begin, end, 0, out);
        a.kv = pages.view();
        attend(a);
      };
      run(0, kPrompt, 1000, 1, whole);
      for (int64_t t = 0; t < kPrompt; t += 257) run(t, std::min(t + 257, kPrompt), 16, 2, split);
      expect_same_bits(split.data(), whole.data(), c.size(), "in calls");
      for (const int64_t t : {0, 255, 256, 511, 699})
        for (const int threads : {1, 2, 5}) {
          run(t, t + 1, 33, threads, split);
          expect_same_bits(split.data() + t * row, whole.data() + t * row, row,
                           fmt::format("query {}, {} threads", t, threads));
        }
    });
}

// Sequences of one query and of a few, by a team, against each by itself.
TEST(Attention, ATeamHasTheSameBits) {
  const std::vector<std::pair<int64_t, int64_t>> queries = {
      {0, 1}, {99, 1}, {255, 1}, {256, 1}, {699, 1}, {120, 3}, {509, 4}, {600, 13}};
  for (const auto& [H, G, K, V] :
       {std::array<int64_t, 4>{6, 2, 40, 24}, {9, 3, 64, 32}, {7, 1, 16, 48}})
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::i8})
      on_every_target([&, H = H, G = G, K = K, V = V] {
        Case c(kPrompt, kPrompt, H, G, K, V);
        std::vector<float> alone(at(c.size())), together(at(c.size()));
        // all of them, and some that the keys of one block are enough for
        for (const size_t count : {queries.size(), size_t{3}, size_t{1}}) {
          std::vector<Pages> pages;
          for (size_t i = 0; i < count; ++i)
            pages.emplace_back(c, 0, queries[i].first + queries[i].second, 64, type);
          const auto call = [&](size_t i, std::vector<float>& out) {
            Attention a = c.attention(out.data());
            a.T = queries[i].second;
            a.first_position = queries[i].first;
            a.q += a.first_position * a.q_token_stride;
            a.out += a.first_position * a.out_token_stride;
            a.window = i % 2 == 1 ? 100 : 0;
            a.softcap = i % 3 == 2 ? 2.0f : 0;
            a.kv = pages[i].view();
            return a;
          };
          std::vector<Attention> calls;
          for (size_t i = 0; i < count; ++i) {
            attend(call(i, alone));
            calls.push_back(call(i, together));
          }
          const auto n = static_cast<int64_t>(count);
          const int64_t floats = team_floats(calls.data(), n, kPrompt);
          for (const int threads : {1, 2, 5}) {
            const Threads scope(threads);
            const auto memory = hwy::AllocateAligned<float>(at(floats));
            std::fill_n(memory.get(), floats, std::nanf(""));
            std::fill(together.begin(), together.end(), std::nanf(""));
            work_together([&](Team& team) { attend(team, calls.data(), n, memory.get()); });
            for (const Attention& a : calls)
              expect_same_bits(a.out, alone.data() + (a.out - together.data()),
                               a.T * a.out_token_stride,
                               fmt::format("{} calls of {} [{}, {}], query {}, {} threads", count,
                                           name_of(type), K, V, a.first_position, threads));
          }
        }
      });
}

// Keys that go into products as they are stored, against the definition.
TEST(Attention, OneQueryOfStoredKeysAgainstDouble) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16})
    for (const int64_t heads : {1, 2, 3, 4, 5, 6})
      on_every_target([&] {
        Case c(1, 301, 2 * heads, 2, 64, 128);
        const Pages whole(c, 0, 301, 301, type), paged(c, 0, 301, 64, type);
        std::vector<float> out(at(c.size()));
        Attention a = c.attention(out.data());
        a.kv = whole.view();
        const auto want = attend_ref(a);
        for (const Pages* pages : {&whole, &paged}) {
          a.kv = pages->view();
          attend(a);
          expect_near(out.data(), want.data(), c.size(), 0, 1e-5);
        }
      });
}

// More blocks than are computed before they are merged.
TEST(Attention, SplitOverThreadsHasTheSameBits) {
  Case c(1, 270000, 8, 4, 4, 4);
  std::vector<float> one(at(c.size())), many(at(c.size()));
  const auto run = [&](int threads, std::vector<float>& out) {
    const Threads scope(threads);
    attend(c.attention(out.data()));
  };
  run(1, one);
  for (const int threads : {2, 3, 8}) {
    run(threads, many);
    expect_same_bits(many.data(), one.data(), c.size(), fmt::format("{} threads", threads));
  }
  const auto want = attend_ref(c.attention(one.data()));
  expect_near(one.data(), want.data(), c.size(), 0, 3e-6);
}

TEST(Attention, FutureAndForgottenKeysDoNotMatter) {
  Case c(40, 40, 2, 1, 8, 8);
  on_every_target([&] {
    std::vector<float> clean(at(c.size())), poisoned(at(c.size()));
    Attention a = c.attention(clean.data());
    a.window = 10;
    attend(a);
    Case d = c;
    for (int64_t i = 0; i < 8; ++i) {  // the last key, and the first one
      d.k[39 * 8 + i] = d.v[39 * 8 + i] = std::nanf("");
      d.k[i] = d.v[i] = std::nanf("");
    }
    Attention b = d.attention(poisoned.data());
    b.window = 10;
    attend(b);
    expect_same_bits(poisoned.data() + 10 * 16, clean.data() + 10 * 16, 29 * 16,
                     "queries 10 to 38");
    EXPECT_TRUE(std::isnan(poisoned[0]));
    EXPECT_TRUE(std::isnan(poisoned[39 * 16]));
  });
}

TEST(Attention, RowsWithoutKeysGiveZero) {
  Case c(3, 5, 2, 1, 8, 8);
  const float minus = -std::numeric_limits<float>::infinity();
  const std::vector<float> bias(5, minus);
  const float sink[] = {0.5f, minus};
  on_every_target([&] {
    std::vector<float> out(at(c.size()), 1.0f);
    Attention a = c.attention(out.data());
    a.first_position = 0;
    c.spans[0].first = 1;  // query 0 comes before every key
    for (const float* sinks : {static_cast<const float*>(nullptr), sink}) {
      std::fill(out.begin(), out.end(), 1.0f);
      a.sinks = sinks;
      attend(a);
      for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(out[at(i)], 0.0f);
      EXPECT_NE(out[16], 0.0f);
    }
    a.bias = bias.data();  // everything masked by the bias
    attend(a);
    for (const float value : out) EXPECT_EQ(value, 0.0f);
    a.kv.size = 0;
    std::fill(out.begin(), out.end(), 1.0f);
    attend(a);
    for (const float value : out) EXPECT_EQ(value, 0.0f);
  });
}

TEST(Attention, NoQueriesWriteNothing) {
  Case c(1, 600, 4, 2, 8, 8);
  std::vector<float> out(at(c.size()), 7.0f);
  Attention a = c.attention(out.data());
  a.T = 0;
  attend(a);
  for (const float value : out) EXPECT_EQ(value, 7.0f);
}

TEST(Attention, RefusesBrokenShapes) {
  Case c(3, 5, 2, 1, 8, 8);
  Attention a = c.attention(nullptr);
  a.G = 3;
  EXPECT_THROW(attend(a), Error);
  a = c.attention(nullptr);
  c.spans.push_back(c.spans[0]);  // twice the same positions
  a.kv = {c.spans.data(), 2};
  EXPECT_THROW(attend(a), Error);
  c.spans[1].first = 6;  // position 5 is missing
  EXPECT_THROW(attend(a), Error);
}

}  // namespace
}  // namespace tessera::kernels::attention_test
