#include "tessera/kernels/linear/linear_recurrence.h"

#include "tessera/base/error.h"
#include "tessera/kernels/linear/linear_recurrence_testing.h"

namespace tessera::kernels::linear_recurrence_test {
namespace {

using Case = RecurrenceCase;

/// Tokens begin .. end of a case; y lies at their place in the whole.
void run(const Case& c, int64_t begin, int64_t end, float* state, float* y) {
  LinearRecurrence r = c.call(begin, end);
  r.state = state;
  r.y = y + begin * c.H * c.V;
  linear_recurrence(r);
}

TEST(LinearRecurrence, OddSizesAgainstDouble) {
  for (const int64_t V : {1, 7, 8, 9, 33, 64, 65})
    for_every_recurrence(9, 3, V % 5 + 1, V, [](const Case& c) {
      auto x = c.doubles();
      const std::vector<double> want = c.definition(x);
      on_every_target([&] {
        Values state = c.values[Case::state];
        std::vector<float> y(want.size());
        run(c, 0, c.T, state.data(), y.data());
        expect_near(y.data(), want.data(), static_cast<int64_t>(want.size()), 1e-6, 2e-5);
        expect_near(state.data(), x[Case::state].data(), state.size(), 1e-6, 1e-5);
      });
    });
}

TEST(LinearRecurrence, SameBitsForAnySplitAndThreads) {
  for_every_recurrence(40, 3, 6, 77, [](const Case& c) {
    on_every_target([&] {
      const auto size = at(c.T * c.H * c.V);
      std::vector<float> whole(size), split(size);
      Values a = c.values[Case::state];
      run(c, 0, c.T, a.data(), whole.data());
      for (const int64_t step : {1, 7, 39}) {
        const Threads scope(step == 7 ? 1 : 5);
        Values b = c.values[Case::state];
        for (int64_t t = 0; t < c.T; t += step)
          run(c, t, std::min(t + step, c.T), b.data(), split.data());
        expect_same_bits(split.data(), whole.data(), static_cast<int64_t>(size), "y");
        expect_same_bits(b.data(), a.data(), a.size(), "state");
      }
    });
  });
}

TEST(LinearRecurrence, KeepsTheStateBeforeEveryInterval) {
  for_every_recurrence(11, 2, 3, 41, [](const Case& c) {
    on_every_target([&] {
      const int64_t interval = 4, size = c.H * c.K * c.V;
      std::vector<float> kept(at(3 * size)), y(at(c.T * c.H * c.V));
      Values whole = c.values[Case::state], state = whole;
      LinearRecurrence r = c.call(0, c.T);
      r.state = whole.data(), r.y = y.data(), r.kept = kept.data(), r.interval = interval;
      linear_recurrence(r);
      for (int64_t i = 0; i < 3; ++i) {
        expect_same_bits(kept.data() + i * size, state.data(), size, "kept");
        run(c, i * interval, std::min(c.T, (i + 1) * interval), state.data(), y.data());
      }
    });
  });
}

TEST(LinearRecurrence, HeadsThatShareEqualHeadsThatRepeat) {
  const int64_t G = 2;
  for_every_recurrence(5, 6, 3, 9, [&](const Case& shared) {
    Case repeated = shared;
    for (int64_t i = 0; i < shared.T * shared.H; ++i)
      for (const auto array : {Case::q, Case::k})
        for (int64_t c = 0; c < shared.K; ++c)
          repeated.values[array][i * shared.K + c] =
              shared.values[array][(i / shared.H * G + i % shared.H / 3) * shared.K + c];
    on_every_target([&] {
      std::vector<float> got(at(shared.T * shared.H * shared.V)), want = got;
      Values a = shared.values[Case::state], b = a;
      LinearRecurrence r = shared.call(0, shared.T);
      r.G = G, r.state = a.data(), r.y = got.data();
      linear_recurrence(r);
      run(repeated, 0, shared.T, b.data(), want.data());
      expect_same_bits(got.data(), want.data(), static_cast<int64_t>(got.size()), "y");
      expect_same_bits(a.data(), b.data(), a.size(), "state");
    });
  });
}

TEST(LinearRecurrence, RateScalesValuesAndSkipAddsThem) {
  for_every_recurrence(9, 3, 5, 41, [](const Case& c) {
    const Values rate(c.T * c.H, 77, 1.0), skip(c.H, 78, 1.0);
    Case scaled = c;
    for (int64_t i = 0; i < c.T * c.H * c.V; ++i) scaled.values[Case::v][i] *= rate[i / c.V];
    on_every_target([&] {
      std::vector<float> got(at(c.T * c.H * c.V)), want = got;
      Values a = c.values[Case::state], b = a;
      LinearRecurrence r = c.call(0, c.T);
      r.state = a.data(), r.y = got.data(), r.rate = rate.data();
      linear_recurrence(r);
      run(scaled, 0, c.T, b.data(), want.data());
      expect_same_bits(got.data(), want.data(), static_cast<int64_t>(got.size()), "y");
      expect_same_bits(a.data(), b.data(), a.size(), "state");
      r.skip = skip.data();
      a = c.values[Case::state];
      linear_recurrence(r);
      for (int64_t i = 0; i < c.T * c.H * c.V; ++i)
        want[at(i)] += skip[i / c.V % c.H] * c.values[Case::v][i];
      expect_near(got.data(), std::vector<double>(want.begin(), want.end()).data(),
                  static_cast<int64_t>(got.size()), 1e-6, 1e-6);
    });
  });
}

TEST(LinearRecurrence, AnEmptyCallLeavesTheState) {
  const Case c(RecurrenceRule::delta, DecayPer::channel, 3, 2, 3, 5);
  Values state = c.values[Case::state];
  run(c, 0, 0, state.data(), nullptr);
  expect_same_bits(state.data(), c.values[Case::state].data(), state.size(), "state");
}

/// The plain rule with every decay that channels share, T tokens of 6 heads that read 2 or 6.
void for_every_chunked(int64_t T,
                       int64_t K,
                       int64_t V,
                       const std::function<void(const Case&, const LinearRecurrence&)>& body) {
  const int64_t H = 6;
  const Values rate(T * H, 77, 1.0), skip(H, 78, 1.0);
  for (const DecayPer decay : {DecayPer::nothing, DecayPer::head, DecayPer::token})
    for (const int64_t G : {0, 2})
      for (const bool scaled : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "T " << T << ", K " << K << ", V " << V << ", decay "
                                          << static_cast<int>(decay) << ", G " << G);
        const Case c(RecurrenceRule::plain, decay, T, H, K, V);
        LinearRecurrence r = c.call(0, T);
        r.G = G;
        if (scaled) r.rate = rate.data(), r.skip = skip.data();
        body(c, r);
      }
}

TEST(LinearRecurrenceChunked, GivesWhatTheTokenFormGives) {
  for (const int64_t T : {1, 8, 15, 16, 17, 300})
    for (const auto& [K, V] : {std::pair<int64_t, int64_t>{1, 1}, {8, 16}, {5, 33}, {19, 80}})
      for_every_chunked(T, K, V, [](const Case& c, LinearRecurrence r) {
        on_every_target([&] {
          const auto size = at(c.T * c.H * c.V);
          std::vector<float> want(size), got(size), alone(size);
          Values a = c.values[Case::state], b = a;
          r.state = a.data(), r.y = want.data();
          linear_recurrence(r);
          r.state = b.data(), r.y = got.data();
          linear_recurrence_chunked(r);
          // sums of thousands of terms: to some roundings of the largest
          const auto near = [](const float* x, const float* y, int64_t n) {
            float most = 0;
            for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(y[i]));
            expect_near(x, std::vector<double>(y, y + n).data(), n, 0, 2e-6 * most);
          };
          near(got.data(), want.data(), static_cast<int64_t>(size));
          near(b.data(), a.data(), a.size());
          // without a state: from zeros
          std::fill_n(a.data(), a.size(), 0.0f);
          r.state = a.data(), r.y = want.data();
          linear_recurrence(r);
          r.state = nullptr, r.y = alone.data();
          linear_recurrence_chunked(r);
          near(alone.data(), want.data(), static_cast<int64_t>(size));
        });
      });
}

TEST(LinearRecurrenceChunked, ATokensBitsDependOnThePastAlone) {
  for_every_chunked(300, 19, 80, [](const Case& c, LinearRecurrence r) {
    on_every_target([&] {
      std::vector<float> whole(at(c.T * c.H * c.V)), part(whole.size());
      r.T = c.T, r.y = whole.data();
      linear_recurrence_chunked(r);
      for (const int64_t T : {1, 15, 259, 300}) {
        const Threads scope(T == 300 ? 1 : 5);
        r.T = T, r.y = part.data();
        linear_recurrence_chunked(r);
        expect_same_bits(part.data(), whole.data(), T * c.H * c.V, "y");
      }
    });
  });
}

TEST(LinearRecurrenceChunked, RefusesOtherRules) {
  const float x = 0;
  LinearRecurrence r;
  EXPECT_TRUE(has_chunked_form(r));
  r.beta = &x;
  EXPECT_FALSE(has_chunked_form(r));
  EXPECT_THROW(linear_recurrence_chunked(r), Error);
  r.beta = nullptr, r.decay = DecayPer::channel;
  EXPECT_THROW(linear_recurrence_chunked(r), Error);
  r.decay = DecayPer::head, r.H = 3, r.G = 2;
  EXPECT_THROW(linear_recurrence_chunked(r), Error);
}

TEST(LinearRecurrence, RefusesTwoRules) {
  const float x = 0;
  LinearRecurrence r;
  r.beta = &x, r.bonus = &x;
  EXPECT_THROW(linear_recurrence(r), Error);
  r.bonus = nullptr, r.beta = nullptr, r.a = &x;
  EXPECT_THROW(linear_recurrence(r), Error);
}

TEST(LinearRecurrence, RefusesGroupsThatDoNotDivide) {
  LinearRecurrence r;
  r.H = 3, r.G = 2;
  EXPECT_THROW(linear_recurrence(r), Error);
}

}  // namespace
}  // namespace tessera::kernels::linear_recurrence_test
