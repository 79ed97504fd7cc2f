// Recurrences that go on from a state with gradients: the kernels against the definitions in
// double, values, last states, and the gradients of all inputs and of the state before.
#include <gtest/gtest.h>

#include "tessera/ops/scan/channel_scan.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/scan/rg_lru.h"
#include "tessera/ops/scan/selective_scan.h"
#include "tessera/ops/scan/slstm.h"
#include "tessera/ops/scan/rwkv4.h"

namespace tessera::ops::from_state_test {
namespace {

using Tensors = std::vector<Tensor>;
using FromState = std::function<std::pair<Tensor, Tensor>(const Tensors&)>;

/// The last of `leaves` is the state before. The first `state_rows` of a state have gradients, 0 =
/// all.
void expect_same(const Tensors& leaves,
                 const FromState& definition,
                 const FromState& kernels,
                 int64_t state_rows) {
  const auto run = [&](const FromState& f, at::ScalarType type) {
    Tensors own;
    for (const Tensor& x : leaves) own.push_back(x.to(type).detach().requires_grad_(true));
    const auto [y, last] = f(own);
    EXPECT_EQ(y.scalar_type(), type);
    const Tensor read = state_rows > 0 ? last.narrow(0, 0, state_rows) : last;
    const auto weights = [&](const Tensor& x, double step) {
      return gen(x.sizes().vec(), step, 0.4).to(type);
    };
    ((y * weights(y, 0.31)).sum() + (read * weights(read, 0.23)).sum()).backward();
    Tensors out{y.detach(), read.detach()};
    for (const Tensor& x : own) {
      Tensor gradient = x.grad().defined() ? x.grad() : at::zeros_like(x);
      out.push_back(state_rows > 0 && out.size() == own.size() + 1
                        ? gradient.narrow(0, 0, state_rows)
                        : gradient);
    }
    return out;
  };
  const Tensors want = run(definition, at::kDouble), got = run(kernels, at::kFloat);
  for (size_t i = 0; i < want.size(); ++i) {
    const double scale = std::max(1.0, want[i].abs().max().item<double>());
    expect_near(got[i].to(at::kDouble), want[i], 2e-5 * scale);
  }
}

TEST(FromState, SelectiveScan) {
  constexpr int64_t kE = 19, kN = 3;
  const auto in = [](const Tensors& t) {
    return SelectiveScan{t[0], t[1], t[2], -t[3].exp(), t[4], t[5], t[6]};
  };
  for (const int64_t t : {1, 7, 32, 70})
    expect_same(
        {gen({t, kE}, 0.3, 0.1), gen({t, kE}, 0.7, 0.2), gen({kE}, 0.5, 0.3),
         gen({kN, kE}, 0.9, 0.4), gen({t, kN}, 0.4, 0.5), gen({t, kN}, 0.6, 0.6),
         gen({kE}, 0.8, 0.7), gen({kN, kE}, 0.37, 0.8)},
        [&](const Tensors& x) { return selective_scan_recurrent(in(x), x[7]); },
        [&](const Tensors& x) { return selective_scan_from(in(x), 8, x[7]); }, 0);
}

TEST(FromState, Wkv4) {
  constexpr int64_t kC = 37;
  const auto in = [](const Tensors& t) { return Wkv4{t[0], t[1], -t[2].exp(), t[3]}; };
  for (const int64_t t : {1, 9, 32, 70}) {
    Tensor state = gen({3, kC}, 0.6, 0.2);
    state[1] = state[1].abs() + 0.5;  // a sum of exponentials
    expect_same(
        {gen({t, kC}, 0.3, 0.1) * 3, gen({t, kC}, 0.7, 0.2), gen({kC}, 0.5, 0.3),
         gen({kC}, 0.9, 0.4), state},
        [&](const Tensors& x) { return wkv4_parallel(in(x), x[4]); },
        [&](const Tensors& x) { return wkv4_from(in(x), x[4]); }, 2);
  }
}

TEST(FromState, Slstm) {
  constexpr int64_t kHeads = 2, kP = 5, kD = kHeads * kP;
  for (const int64_t t : {1, 6, 33}) {
    Tensor state = gen({4, kD}, 0.6, 0.2);
    state[2] = state[2].abs() + 0.5;  // the normaliser
    expect_same(
        {gen({t, 4, kD}, 0.3, 0.1), gen({4, kD, kP}, 0.7, 0.2) * 0.5, state},
        [&](const Tensors& x) {
          return slstm_recurrent({x[0], x[1]}, x[2]);
        },
        [&](const Tensors& x) {
          return slstm_from({x[0], x[1]}, x[2]);
        },
        3);
  }
}

TEST(FromState, RgLru) {
  constexpr int64_t kW = 21;
  const auto in = [](const Tensors& t) { return RgLru{t[0], t[1], t[2], t[3].exp()}; };
  for (const int64_t t : {1, 8, 40})
    expect_same(
        {gen({t, kW}, 0.3, 0.1), gen({t, kW}, 0.7, 0.2), gen({t, kW}, 0.5, 0.3),
         gen({kW}, 0.9, 0.4), gen({kW}, 0.6, 0.2)},
        [&](const Tensors& x) { return rg_lru_chunked(in(x), 8, x[4]); },
        [&](const Tensors& x) { return rg_lru_from(in(x), 8, x[4]); }, 0);
}

TEST(FromState, ChannelScan) {
  constexpr int64_t kW = 21;
  for (const int64_t t : {1, 8, 40})
    expect_same(
        {gen({t, kW}, 0.3, 0.1), gen({t, kW}, 0.7, 0.2), gen({kW}, 0.6, 0.2)},
        [&](const Tensors& x) {
          Tensors h{x[2]};
          for (int64_t i = 0; i < t; ++i) h.push_back(x[0][i] * h.back() + x[1][i]);
          return std::pair{at::stack(h).narrow(0, 1, t), h.back()};
        },
        [&](const Tensors& x) { return channel_scan_from(x[0], x[1], 8, x[2]); }, 0);
}

/// Documents behind one another, each from zeros: the kernels and the chunked form.
TEST(ChannelScan, DocumentsAgainstTheDefinition) {
  const Lengths lengths{5, 1, 40};
  constexpr int64_t kT = 46, kW = 70;
  const auto run = [&](const auto& form, at::ScalarType type) {
    Tensors leaves{gen({kT, kW}, .7, .1), gen({kT, kW}, .31, 2)};
    for (Tensor& leaf : leaves) leaf = leaf.to(type).requires_grad_(true);
    const Tensor h = form(leaves[0], leaves[1]);
    h.backward(gen({kT, kW}, .19, .5).to(type));
    return Tensors{h.detach(), leaves[0].grad(), leaves[1].grad()};
  };
  const Tensors want = run(
      [&](const Tensor& a, const Tensor& b) {
        Tensors rows;
        for (int64_t i = 0; i < kT; ++i)
          rows.push_back(i == 0 || i == 5 || i == 6 ? b[i] : a[i] * rows.back() + b[i]);
        return at::stack(rows);
      },
      at::kDouble);
  for (const int64_t chunk : {1, 8, 64})
    for (const auto type : {at::kDouble, at::kFloat}) {
      const Tensors got =
          run([&](const Tensor& a, const Tensor& b) { return channel_scan(a, b, lengths, chunk); },
              type);
      for (size_t i = 0; i < want.size(); ++i)
        expect_near(got[i], want[i],
                    (type == at::kDouble ? 1e-13 : 1e-6) * want[i].abs().max().item<double>());
    }
}

TEST(FromState, AFreshDocumentPassesItsLastStateOn) {
  // two halves, the second from the first one's state, are the whole
  constexpr int64_t kT = 41, kC = 17;
  const auto leaf = [](std::vector<int64_t> sizes, double step) {
    return gen(sizes, step, 0.2).to(at::kFloat).requires_grad_(true);
  };
  const auto run = [&](bool whole) {
    const Tensor k = leaf({kT, kC}, 0.3), v = leaf({kT, kC}, 0.7), u = leaf({kC}, 0.5);
    const Tensor w = at::full({kC}, -0.4, at::kFloat);
    const auto part = [&](int64_t from, int64_t n) {
      return Wkv4{k.narrow(0, from, n), v.narrow(0, from, n), w, u};
    };
    Tensor y;
    if (whole) {
      y = wkv4_from(part(0, kT), {}).first;
    } else {
      const auto [first, state] = wkv4_from(part(0, 15), {});
      y = at::cat({first, wkv4_from(part(15, kT - 15), state).first});
    }
    (y * gen({kT, kC}, 0.31, 0.4).to(at::kFloat)).sum().backward();
    return Tensors{y.detach(), k.grad(), v.grad(), u.grad()};
  };
  const Tensors whole = run(true), halves = run(false);
  for (size_t i = 0; i < whole.size(); ++i) expect_near(halves[i], whole[i], 2e-5);
}

}  // namespace
}  // namespace tessera::ops::from_state_test
