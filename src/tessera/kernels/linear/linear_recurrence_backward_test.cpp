#include "tessera/kernels/linear/linear_recurrence_backward.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/kernels/linear/linear_recurrence_testing.h"

namespace tessera::kernels::linear_recurrence_backward_test {
namespace {

using Case = RecurrenceCase;

/// What scales and repeats the values, and its gradients.
struct Scales {
  Values rate, skip;
  std::vector<float> drate, dskip;
  explicit Scales(const Case& c)
      : rate(c.T * c.H, 31), skip(c.H, 32), drate(at(c.T * c.H)), dskip(drate) {}
};

/// Gradients of sum(y dy) + sum(final state ds), by Case::Array; checkpoints every `interval`.
std::vector<std::vector<float>> gradients(const Case& c,
                                          const Values& dy,
                                          const Values& ds,
                                          int64_t interval,
                                          int64_t groups = 0,
                                          int64_t summed = 1,
                                          Scales* scales = nullptr) {
  const int64_t size = c.H * c.K * c.V;
  Values state = c.values[Case::state];
  std::vector<float> checkpoints, y(at(c.T * c.H * c.V));
  for (int64_t t = 0; t < c.T; t += interval) {
    checkpoints.insert(checkpoints.end(), state.data(), state.data() + size);
    LinearRecurrence r = c.call(t, std::min(t + interval, c.T));
    if (groups > 0) {
      r.q = c.values[Case::q].data() + t * groups * c.K;
      r.k = c.values[Case::k].data() + t * groups * c.K;
    }
    r.G = groups;
    if (scales != nullptr) r.rate = scales->rate.data() + t * c.H;
    r.state = state.data(), r.y = y.data();
    linear_recurrence(r);
  }
  std::vector<std::vector<float>> out;
  for (const Values& x : c.values) out.emplace_back(at(x.size()), std::nanf(""));
  out[Case::state].assign(ds.data(), ds.data() + size);
  LinearRecurrenceGradients g;
  g.interval = interval, g.summed = summed, g.checkpoints = checkpoints.data(), g.dy = dy.data();
  g.dstate = out[Case::state].data();
  g.dq = out[Case::q].data(), g.dk = out[Case::k].data(), g.dv = out[Case::v].data();
  if (c.decay == DecayPer::token || c.decay == DecayPer::channel)
    g.dlog_decay = out[Case::log_decay].data();
  g.dbeta = out[Case::beta].data();
  g.da = out[Case::a].data(), g.db = out[Case::b].data();
  g.dbonus = out[Case::bonus].data();
  LinearRecurrence r = c.call(0, c.T);
  r.G = groups;
  if (scales != nullptr) {
    r.rate = scales->rate.data(), r.skip = scales->skip.data();
    g.drate = scales->drate.data(), g.dskip = scales->dskip.data();
  }
  linear_recurrence_backward(r, g);
  return out;
}

TEST(LinearRecurrenceBackward, EveryGradientAgainstDifferencesOfTheDefinition) {
  for (const int64_t V : {1, 5, 18})
    for_every_recurrence(7, 2, V == 5 ? 17 : 3, V, [](const Case& c) {
      const Values dy(c.T * c.H * c.V, 21), ds(c.H * c.K * c.V, 22);
      const auto loss = [&](std::vector<Case::Doubles> x) {
        const auto y = c.definition(x);
        return std::inner_product(y.begin(), y.end(), dy.data(), 0.0) +
               std::inner_product(x[Case::state].begin(), x[Case::state].end(), ds.data(), 0.0);
      };
      std::vector<std::pair<int, std::vector<double>>> want;
      for (int array = 0; array < Case::kArrays; ++array) {
        if (!c.reads(static_cast<Case::Array>(array))) continue;
        if (array == Case::log_decay && c.decay == DecayPer::head) continue;
        const int64_t n = array == Case::log_decay && c.decay == DecayPer::token
                              ? c.T * c.H
                              : c.values[at(array)].size();
        std::vector<double> grad;
        for (int64_t i = 0; i < n; ++i) {
          auto up = c.doubles(), down = up;
          up[at(array)][at(i)] += 1e-5;
          down[at(array)][at(i)] -= 1e-5;
          grad.push_back((loss(up) - loss(down)) / 2e-5);
        }
        want.emplace_back(array, std::move(grad));
      }
      on_every_target([&] {
        for (const int64_t interval : {1, 3, 8}) {
          const auto got = gradients(c, dy, ds, interval);
          for (const auto& [array, grad] : want) {
            SCOPED_TRACE("array " + std::to_string(array) + ", interval " +
                         std::to_string(interval));
            expect_near(got[at(array)].data(), grad.data(), static_cast<int64_t>(grad.size()), 2e-5,
                        5e-5);
          }
        }
      });
    });
}

// Chunks that hand a state on within an interval, and one that ends early.
TEST(LinearRecurrenceBackward, ChunksAndIntervalsDoNotShow) {
  for (const int64_t K : {3, 65})
    for_every_recurrence(41, 1, K, 18, [](const Case& c) {
      const Values dy(c.T * c.H * c.V, 21), ds(c.H * c.K * c.V, 22);
      on_every_target([&] {
        const auto want = gradients(c, dy, ds, 1);  // a chunk for every token
        for (const int64_t interval : {32, 50}) {
          const auto got = gradients(c, dy, ds, interval);
          for (int array = 0; array < Case::kArrays; ++array) {
            if (!c.reads(static_cast<Case::Array>(array))) continue;
            if (array == Case::log_decay && c.decay == DecayPer::head) continue;
            SCOPED_TRACE("array " + std::to_string(array) + ", interval " +
                         std::to_string(interval));
            const auto& expected = want[at(array)];
            auto n = static_cast<int64_t>(expected.size());
            if (array == Case::log_decay && c.decay == DecayPer::token) n = c.T * c.H;
            double largest = 1;
            for (int64_t i = 0; i < n; ++i)
              largest = std::max(largest, std::abs(static_cast<double>(expected[at(i)])));
            const std::vector<double> doubles(expected.begin(), expected.begin() + n);
            expect_near(got[at(array)].data(), doubles.data(), n, 1e-5 * largest, 1e-4);
          }
        }
      });
    });
}

TEST(LinearRecurrenceBackward, HeadsThatShareEqualHeadsThatRepeat) {
  for_every_recurrence(9, 4, 5, 3, [](const Case& given) {
    Case c = given;
    for (int64_t i = 0; i < c.T * c.H; ++i)
      for (const auto array : {Case::q, Case::k})
        for (int64_t e = 0; e < c.K; ++e)
          c.values[array][i * c.K + e] = c.values[array][i / 2 * 2 * c.K + e];
    Case shared = c;
    for (int64_t i = 0; i < c.T * 2; ++i)
      for (const auto array : {Case::q, Case::k})
        for (int64_t e = 0; e < c.K; ++e)
          shared.values[array][i * c.K + e] = c.values[array][2 * i * c.K + e];
    const Values dy(c.T * c.H * c.V, 21), ds(c.H * c.K * c.V, 22);
    on_every_target([&] {
      const auto want = gradients(c, dy, ds, 4), got = gradients(shared, dy, ds, 4, 2);
      for (const auto array :
           {Case::q, Case::k, Case::v, Case::log_decay, Case::beta, Case::state}) {
        if (!c.reads(array) || (array == Case::log_decay && c.decay == DecayPer::head)) continue;
        const bool per_token = array == Case::log_decay && c.decay == DecayPer::token;
        expect_same_bits(got[at(array)].data(), want[at(array)].data(),
                         per_token ? c.T * c.H : static_cast<int64_t>(want[at(array)].size()),
                         "gradient");
      }
      const auto sums = gradients(shared, dy, ds, 4, 2, 2);
      for (const int array : {Case::q, Case::k})
        for (int64_t row = 0; row < c.T * 2; ++row)
          for (int64_t e = 0; e < c.K; ++e) {
            const auto& each = want[at(array)];
            const float sum = each[at(2 * row * c.K + e)] + each[at((2 * row + 1) * c.K + e)];
            // one product of the sums where heads share their scores, else each head's in turn
            const bool one_product =
                c.rule == RecurrenceRule::plain && c.decay != DecayPer::channel;
            EXPECT_NEAR(sums[at(array)][at(row * c.K + e)], sum, one_product ? 5e-6 : 0);
          }
    });
  });
}

TEST(LinearRecurrenceBackward, RateAndSkip) {
  for_every_recurrence(9, 2, 5, 18, [](const Case& c) {
    const Values dy(c.T * c.H * c.V, 21), ds(c.H * c.K * c.V, 22);
    Scales scales(c);
    Case scaled = c;
    for (int64_t i = 0; i < c.T * c.H * c.V; ++i) scaled.values[Case::v][i] *= scales.rate[i / c.V];
    on_every_target([&] {
      const auto want = gradients(scaled, dy, ds, 4), got = gradients(c, dy, ds, 4, 0, 1, &scales);
      for (const auto array : {Case::q, Case::k, Case::state})
        expect_same_bits(got[at(array)].data(), want[at(array)].data(),
                         static_cast<int64_t>(want[at(array)].size()), "gradient");
      for (int64_t row = 0; row < c.T * c.H; ++row) {
        double drate = 0, dskip = 0;
        for (int64_t i = row * c.V; i < (row + 1) * c.V; ++i) {
          const double v = c.values[Case::v][i], d = want[Case::v][at(i)], y = dy[i];
          drate += d * v, dskip += y * v;
          EXPECT_NEAR(got[Case::v][at(i)], scales.rate[row] * d + scales.skip[row % c.H] * y, 1e-5);
        }
        EXPECT_NEAR(scales.drate[at(row)], drate, 1e-4);
        EXPECT_NEAR(scales.dskip[at(row)], dskip, 1e-4);
      }
    });
  });
}

TEST(LinearRecurrenceBackward, RefusesNoIntervalAndSumsAcrossGroups) {
  EXPECT_THROW(linear_recurrence_backward({}, {}), Error);
  LinearRecurrence r;
  r.H = 4, r.G = 2;
  LinearRecurrenceGradients g;
  g.interval = 1, g.summed = 4;
  EXPECT_THROW(linear_recurrence_backward(r, g), Error);
}

}  // namespace
}  // namespace tessera::kernels::linear_recurrence_backward_test
