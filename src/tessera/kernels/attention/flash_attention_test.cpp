// Tiled attention and its gradient against a scalar twin in double, on every target, at sizes
// around its tiles.
#include "tessera/kernels/attention/flash_attention.h"

#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::flash_attention_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  int64_t B, T, S, H, G, K, V;
  Values q{B * T * H * K, 1}, k{B * S * G * K, 2}, v{B * S * G * V, 3}, d_out{B * T * H * V, 4};
  Values sinks{H, 5}, bias{H * 9, 6};

  FlashAttention attention() const {
    FlashAttention a;
    a.B = B, a.T = T, a.S = S, a.H = H, a.G = G, a.K = K, a.V = V;
    a.q = {q.data(), T * H * K, H * K, K};
    a.k = {k.data(), S * G * K, G * K, K};
    a.v = {v.data(), S * G * V, G * V, V};
    a.scale = static_cast<float>(0.7 / std::sqrt(static_cast<double>(K)));
    return a;
  }
};

struct Result {
  std::vector<double> out, lse, dq, dk, dv, d_bias, d_sinks;
  double cancels = 0;  // the largest product that dq and dk are differences of
};

int64_t times(const FlashAttention& a, int64_t h, int64_t p, int64_t j) {
  if (a.documents != nullptr) {
    const KeyRange document = a.documents[p - a.first_query];
    if (j < document.begin || j >= document.end) return 0;
  }
  if (a.visible != nullptr) return a.visible->multiplicity(h, p, j);
  if (a.causal && j > p) return 0;
  return a.window == 0 || (j > p - a.window && (a.causal || j < p + a.window)) ? 1 : 0;
}

/// What dropout multiplies a weight by.
double kept(const FlashAttention& a, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (a.dropout_limit == 0) return 1;
  const DropoutRow& row = a.dropout[b * a.T + i];
  const uint64_t number =
      row.first + static_cast<uint64_t>(h) * row.head + static_cast<uint64_t>(j);
  const bool dropped = RandomKey(row.key).bits(number) < a.dropout_limit;
  return dropped ? 0 : static_cast<double>(a.dropout_scale);
}

/// The definition and its derivative, one score at a time.
Result by_hand(const Case& c, const FlashAttention& a) {
  Result r;
  r.out.resize(at(c.B * c.T * c.H * c.V));
  r.lse.resize(at(c.B * c.H * c.T));
  r.dq.resize(at(c.q.size())), r.dk.resize(at(c.k.size())), r.dv.resize(at(c.v.size()));
  r.d_bias.resize(at(c.H * std::max<int64_t>(1, a.bias_size))), r.d_sinks.resize(at(c.H));
  const auto d = [](float x) { return static_cast<double>(x); };
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t h = 0; h < c.H; ++h)
      for (int64_t i = 0; i < c.T; ++i) {
        const int64_t g = h * c.G / c.H, qi = ((b * c.T + i) * c.H + h) * c.K,
                      oi = ((b * c.T + i) * c.H + h) * c.V;
        const auto ki = [&](int64_t j) { return ((b * c.S + j) * c.G + g) * c.K; };
        const auto vi = [&](int64_t j) { return ((b * c.S + j) * c.G + g) * c.V; };
        std::vector<double> s(at(c.S), -kInfinity), slope(at(c.S), 1);
        std::vector<int64_t> entry(at(c.S));
        double max = a.sinks ? d(a.sinks[h]) : -kInfinity;
        for (int64_t j = 0; j < c.S; ++j) {
          const int64_t m = times(a, h, a.first_query + i, a.first_key + j);
          if (m == 0) continue;
          double x = 0;
          for (int64_t e = 0; e < c.K; ++e) x += d(c.q[qi + e]) * d(c.k[ki(j) + e]);
          x *= d(a.scale);
          if (a.softcap > 0) {
            const double t = std::tanh(x / d(a.softcap));
            x = d(a.softcap) * t, slope[at(j)] = 1 - t * t;
          }
          if (a.bias != nullptr) {
            entry[at(j)] = std::clamp<int64_t>(a.bias_zero + a.first_key + j - a.first_query - i, 0,
                                               a.bias_size - 1);
            x += d(a.bias[h * a.bias_head_stride + entry[at(j)]]);
          }
          s[at(j)] = x + std::log(static_cast<double>(m));
          max = std::max(max, s[at(j)]);
        }
        double sum = a.sinks ? std::exp(d(a.sinks[h]) - max) : 0;
        for (const double x : s)
          if (x != -kInfinity) sum += std::exp(x - max);
        const double lse = sum > 0 ? max + std::log(sum) : -kInfinity;
        r.lse[at((b * c.H + h) * c.T + i)] = lse;
        double delta = 0;
        for (int64_t j = 0; j < c.S; ++j)
          if (s[at(j)] != -kInfinity)
            for (int64_t e = 0; e < c.V; ++e) {
              const double o = std::exp(s[at(j)] - lse) * kept(a, b, h, i, j) * d(c.v[vi(j) + e]);
              r.out[at(oi + e)] += o;
              delta += o * d(c.d_out[oi + e]);
            }
        if (a.sinks && sum > 0) r.d_sinks[at(h)] -= std::exp(d(a.sinks[h]) - lse) * delta;
        for (int64_t j = 0; j < c.S; ++j) {
          if (s[at(j)] == -kInfinity) continue;
          const double p = std::exp(s[at(j)] - lse), m = kept(a, b, h, i, j);
          double dp = 0;
          for (int64_t e = 0; e < c.V; ++e) {
            dp += m * d(c.d_out[oi + e]) * d(c.v[vi(j) + e]);
            r.dv[at(vi(j) + e)] += p * m * d(c.d_out[oi + e]);
          }
          const double dx = p * (dp - delta), ds = dx * slope[at(j)] * d(a.scale);
          if (a.bias != nullptr) r.d_bias[at(h * a.bias_size + entry[at(j)])] += dx;
          for (int64_t e = 0; e < c.K; ++e) {
            r.dq[at(qi + e)] += ds * d(c.k[ki(j) + e]);
            r.dk[at(ki(j) + e)] += ds * d(c.q[qi + e]);
            const double size = std::max(std::abs(d(c.k[ki(j) + e])), std::abs(d(c.q[qi + e])));
            r.cancels = std::max(r.cancels, p * std::abs(dp * d(a.scale)) * size);
          }
        }
      }
  return r;
}

/// Errors relative to the largest value. Where all cancel (a softmax over one key has no gradient)
/// what remains is the rounding of `cancels`.
void expect_near(const char* what,
                 const std::vector<float>& got,
                 const std::vector<double>& want,
                 double relative,
                 double cancels = 0) {
  constexpr double kRounding = std::numeric_limits<float>::epsilon();
  double largest = std::max(1e-3, kRounding * cancels / relative);
  for (const double x : want)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    if (static_cast<double>(got[i]) == want[i]) continue;  // infinities
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), relative * largest)
        << what << " " << i << ": " << got[i] << " " << want[i];
  }
}

/// What the kernels give; NaN where they write nothing.
struct Outputs {
  std::vector<float> out, lse, dq, dk, dv, d_bias, d_sinks;
};

Outputs outputs(const Case& c, const FlashAttention& a) {
  const auto unset = [](int64_t n) {
    return std::vector<float>(at(n), std::numeric_limits<float>::quiet_NaN());
  };
  Outputs o{unset(c.B * c.T * c.H * c.V),
            unset(c.B * c.H * c.T),
            unset(c.q.size()),
            unset(c.k.size()),
            unset(c.v.size()),
            unset(c.H * std::max<int64_t>(1, a.bias_size)),
            unset(c.H)};
  const MutableHeads out{o.out.data(), c.T * c.H * c.V, c.H * c.V, c.V};
  flash_forward(a, out, o.lse.data());
  FlashGradients g;
  g.out = {out.data, out.batch, out.token, out.head};
  g.d_out = {c.d_out.data(), c.T * c.H * c.V, c.H * c.V, c.V};
  g.lse = o.lse.data();
  g.dq = {o.dq.data(), c.T * c.H * c.K, c.H * c.K, c.K};
  g.dk = {o.dk.data(), c.S * c.G * c.K, c.G * c.K, c.K};
  g.dv = {o.dv.data(), c.S * c.G * c.V, c.G * c.V, c.V};
  if (a.bias != nullptr) g.d_bias = o.d_bias.data();
  if (a.sinks != nullptr) g.d_sinks = o.d_sinks.data();
  flash_backward(a, g);
  return o;
}

void expect_definition(const Case& c, const FlashAttention& a) {
  const Result want = by_hand(c, a);
  const Outputs got = outputs(c, a);
  expect_near("out", got.out, want.out, 3e-6);
  expect_near("lse", got.lse, want.lse, 3e-6);
  expect_near("dq", got.dq, want.dq, 1e-5, want.cancels);
  expect_near("dk", got.dk, want.dk, 1e-5, want.cancels);
  expect_near("dv", got.dv, want.dv, 1e-5);
  if (a.bias != nullptr) expect_near("d_bias", got.d_bias, want.d_bias, 1e-5);
  if (a.sinks != nullptr) expect_near("d_sinks", got.d_sinks, want.d_sinks, 1e-5);
}

/// Every third key, the first one twice; head 1 does not see key 3, row 5 sees nothing.
class Holes final : public Visibility {
 public:
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    if (key > query || query == 5 || (head == 1 && key == 3)) return 0;
    return key == 0 ? 2 : key % 3 == 0 || key == query ? 1 : 0;
  }
  std::vector<KeyRange> ranges(int64_t, int64_t, int64_t end) const override { return {{0, end}}; }
  bool same_for_heads() const override { return false; }
};

TEST(FlashAttention, AllTargetsOddSizes) {
  on_every_target([] {
    for (const int64_t t : {1, 7, 63, 97, 200}) {
      const Case c{1, t, t, 2, 2, 9, 5};
      SCOPED_TRACE(t);
      expect_definition(c, c.attention());
      FlashAttention a = c.attention();
      a.causal = false;
      expect_definition(c, a);
      a.window = 6;
      expect_definition(c, a);
      a.causal = true;
      expect_definition(c, a);
    }
  });
}

TEST(FlashAttention, AllTargetsEveryTerm) {
  on_every_target([] {
    const Case c{2, 110, 110, 6, 2, 16, 24};
    FlashAttention a = c.attention();
    a.softcap = 1.5f;
    a.sinks = c.sinks.data();
    a.bias = c.bias.data(), a.bias_head_stride = 9, a.bias_size = 9, a.bias_zero = 6;
    expect_definition(c, a);
    a.bias_head_stride = 0;  // one row for all heads
    a.window = 20;
    expect_definition(c, a);
    const Holes holes;
    a.visible = &holes;
    expect_definition(c, a);
    a.sinks = nullptr;  // now row 5 has nothing at all
    expect_definition(c, a);
  });
}

/// The keys of each query's document.
std::vector<KeyRange> documents(const std::vector<int64_t>& lengths) {
  std::vector<KeyRange> out;
  for (const int64_t length : lengths) {
    const auto begin = static_cast<int64_t>(out.size());
    out.insert(out.end(), at(length), {begin, begin + length});
  }
  return out;
}

TEST(FlashAttention, AllTargetsDocuments) {
  on_every_target([] {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1, 2, 1, 3, 96, 5, 130, 2, 1, 7, 48}, {3, 250, 43}, {100, 0, 196}}) {
      const std::vector<KeyRange> ranges = documents(lengths);
      const Case c{1, 296, 296, 4, 2, 9, 20};
      FlashAttention a = c.attention();
      a.documents = ranges.data();
      expect_definition(c, a);
      a.causal = false;
      expect_definition(c, a);
      a.window = 6;
      expect_definition(c, a);
      a.causal = true;
      a.softcap = 1.5f, a.sinks = c.sinks.data();
      a.bias = c.bias.data(), a.bias_head_stride = 9, a.bias_size = 9, a.bias_zero = 6;
      expect_definition(c, a);
    }
  });
}

TEST(FlashAttention, AllTargetsDropout) {
  on_every_target([] {
    // rows of keys that do not begin with a block of four random numbers
    for (const int64_t t : {7, 110, 201}) {
      const Case c{2, t, t, 4, 2, 16, 24};
      FlashAttention a = c.attention();
      std::vector<DropoutRow> rows;
      for (uint64_t i = 0; i < static_cast<uint64_t>(2 * t); ++i)
        // numbers about 2^34, where the lower half of a block's begins anew, and below 0
        rows.push_back({0x123456789abu + i % 3, (uint64_t{1} << 34) * (i % 2) - 50 + i, 7 * i});
      a.dropout_limit = 0x50000000u, a.dropout_scale = 1.4545454f, a.dropout = rows.data();
      expect_definition(c, a);
      a.softcap = 1.5f, a.sinks = c.sinks.data();
      a.bias = c.bias.data(), a.bias_head_stride = 9, a.bias_size = 9, a.bias_zero = 6;
      const Holes holes;
      a.visible = &holes;
      expect_definition(c, a);
    }
  });
}

TEST(FlashAttention, RefusesDocumentsWithAPattern) {
  const Case c{1, 8, 8, 1, 1, 4, 4};
  const std::vector<KeyRange> ranges = documents({8});
  const Holes holes;
  FlashAttention a = c.attention();
  a.documents = ranges.data(), a.visible = &holes;
  EXPECT_THROW(outputs(c, a), Error);
}

TEST(FlashAttention, QueriesAfterAPast) {
  const Case c{1, 10, 150, 4, 1, 8, 8};
  FlashAttention a = c.attention();
  a.first_query = 160, a.first_key = 20;
  expect_definition(c, a);
  a.window = 12;
  expect_definition(c, a);
  a.first_query = 15;  // the first queries come before all keys
  a.window = 0;
  expect_definition(c, a);
}

// so many groups that each is the work of one thread
TEST(FlashAttention, AllTargetsManyGroups) {
  on_every_target([] {
    const Case c{4, 230, 230, 4, 2, 9, 20};
    FlashAttention a = c.attention();
    expect_definition(c, a);
    a.window = 30;
    expect_definition(c, a);
    a.window = 0;
    a.first_key = 100;  // whole tiles of queries come before all keys
    expect_definition(c, a);
    a.first_key = 0;
    const Holes holes;
    a.visible = &holes;
    a.softcap = 1.5f;
    expect_definition(c, a);
    a.bias = c.bias.data(), a.bias_head_stride = 9, a.bias_size = 9, a.bias_zero = 6;
    expect_definition(c, a);
  });
}

TEST(FlashAttention, ThreadsDoNotChangeTheBits) {
  const int before = thread_count();
  for (const int64_t b : {1, 5}) {  // groups that threads share, and more than threads
    const Case c{b, 200, 200, 2, 2, 16, 16};
    set_thread_count(1);
    const Outputs one = outputs(c, c.attention());
    for (const int threads : {2, 3, 4}) {
      set_thread_count(threads);
      const Outputs many = outputs(c, c.attention());
      EXPECT_EQ(one.out, many.out) << b << " " << threads;
      EXPECT_EQ(one.lse, many.lse) << b << " " << threads;
      EXPECT_EQ(one.dq, many.dq) << b << " " << threads;
      EXPECT_EQ(one.dk, many.dk) << b << " " << threads;
      EXPECT_EQ(one.dv, many.dv) << b << " " << threads;
    }
  }
  set_thread_count(before);
}

TEST(FlashAttention, GoldenCore) {
  const auto q = sines(8, 0.7, 0.1), k = sines(8, 0.5, 0.3), v = sines(8, 0.9, 0.2);
  const float sink = 0.25f;
  const float slope[] = {-1.5f, -1, -0.5f, 0};
  const auto run = [&](auto&& change, std::vector<float>& lse) {
    FlashAttention a;
    a.B = 1, a.T = a.S = 4, a.H = a.G = 1, a.K = a.V = 2;
    a.q = {q.data(), 0, 2, 0}, a.k = {k.data(), 0, 2, 0}, a.v = {v.data(), 0, 2, 0};
    a.scale = static_cast<float>(1 / std::sqrt(2.0));
    change(a);
    std::vector<float> out(8);
    flash_forward(a, {out.data(), 0, 2, 0}, lse.data());
    return out;
  };
  on_every_target([&] {
    std::vector<float> lse(4), unused(4);
    const double rows[] = {0.1986693308, 0.8912073601,  0.6603813194,  0.4676147093,
                           0.1212608142, -0.0239336695, -0.3409657827, 0.1313776331};
    const double sums[] = {0.3847386049, 1.6675818465, 1.0040562352, 1.0828606798};
    const double capped[] = {-0.1897397918, 0.1179163560}, sunk[] = {-0.2376393297, 0.0915648850},
                 windowed[] = {-0.6268675619, -0.0602747904},
                 alibi[] = {-0.5140860712, 0.0858283982};
    kernels::expect_near(run([](FlashAttention&) {}, lse).data(), rows, 8, 0, 3e-7);
    kernels::expect_near(lse.data(), sums, 4, 0, 3e-7);
    const auto row3 = [&](auto&& change, const double* want) {
      kernels::expect_near(run(change, unused).data() + 6, want, 2, 0, 3e-7);
    };
    row3([](FlashAttention& a) { a.softcap = 0.5f; }, capped);
    row3([&](FlashAttention& a) { a.sinks = &sink; }, sunk);
    row3([](FlashAttention& a) { a.window = 2; }, windowed);
    row3([&](FlashAttention& a) { a.bias = slope, a.bias_size = 4, a.bias_zero = 3; }, alibi);
  });
}

TEST(FlashAttention, RefusesHeadsThatDoNotDivide) {
  const Case c{1, 4, 4, 3, 1, 2, 2};
  FlashAttention a = c.attention();
  a.G = 2;
  std::vector<float> out(100), lse(100);
  EXPECT_THROW(flash_forward(a, {out.data(), 0, 0, 0}, lse.data()), Error);
}

}  // namespace
}  // namespace tessera::kernels::flash_attention_test
