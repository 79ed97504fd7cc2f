#include "tessera/kernels/linear_recurrence.h"

#include "tessera/base/error.h"
#include "tessera/kernels/linear_recurrence_testing.h"

namespace tessera::kernels {
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
}  // namespace tessera::kernels
