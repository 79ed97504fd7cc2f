// The state-space recurrence in its parallel, chunked and recurrent forms and its kernel,
// against values computed independently in double.
#include "tessera/ops/scan/mamba2.h"

#include "tessera/ops/ops_testing.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::ops::mamba2_test {
namespace {

using Form = std::function<std::pair<Tensor, Tensor>(const Ssd&, const Tensor& state)>;

std::vector<std::pair<std::string, Form>> forms() {
  std::vector<std::pair<std::string, Form>> out{
      {"recurrent", [](const Ssd& in, const Tensor& s) { return ssd_recurrent(in, s); }}};
  for (const int64_t chunk : {1, 2, 3, 4, 64})
    out.emplace_back("chunk " + std::to_string(chunk),
                     [chunk](const Ssd& in, const Tensor& s) { return ssd_chunked(in, chunk, s); });
  return out;
}

const std::vector<double> kX = {1, -1, .5, 2, -1, .5, 2, 1}, kB = {1, .5, -1, 2, .5, -.5, 0, 1},
                          kC = {1, 1, .5, -1, 2, 0, -1, 1};

/// One head of two channels, N = 2, A = -1, without D.
Ssd one_head(at::ScalarType type) {
  return {tensor(kX, {1, 4, 1, 2}).to(type),
          tensor({.5, .25, 1, .75}, {1, 4, 1}).to(type),
          tensor({-1}).to(type),
          tensor(kB, {1, 4, 1, 2}).to(type),
          tensor(kC, {1, 4, 1, 2}).to(type),
          {}};
}

Ssd narrowed(const Ssd& in, int64_t from, int64_t n) {
  return {in.x_BTHP.narrow(1, from, n), in.dt_BTH.narrow(1, from, n), in.a_H,
          in.b_BTGN.narrow(1, from, n), in.c_BTGN.narrow(1, from, n), in.d_H};
}

const Tensor& golden_y() {
  static const Tensor y = tensor(
      {.75, -.75, -.3125, -1.25, -0.80546506, -0.15438424, 2.00369796, 0.80831146}, {1, 4, 1, 2});
  return y;
}
const Tensor& golden_state() {
  static const Tensor s = tensor({-0.19023738, 1.81346058, -0.03646298, 0.77184848}, {1, 1, 2, 2});
  return s;
}

TEST(Ssd, GoldenInEveryForm) {
  for (const auto& [name, form] : forms()) {
    const auto [y, state] = form(one_head(at::kDouble), {});
    expect_near(y, golden_y(), 1e-8, name.c_str());
    expect_near(state, golden_state(), 1e-8, name.c_str());
  }
}

/// Every token writes 1 into a channel of its own and every query reads 1: y_t is row t of L.
TEST(Ssd, GoldenDecayMatrix) {
  const Tensor dt = tensor({.5, .25, 1, .75}), one = at::ones({1, 4, 1, 1}, at::kDouble);
  const Ssd in{
      at::diag(1 / dt).reshape({1, 4, 1, 4}), dt.reshape({1, 4, 1}), tensor({-1}), one, one, {}};
  const Tensor want = tensor({1, 0, 0, 0, 0.77880078, 1, 0, 0, 0.28650480, 0.36787944, 1, 0,
                              0.13533528, 0.17377394, 0.47236655, 1},
                             {4, 4});
  for (const auto& [name, form] : forms())
    expect_near(form(in, {}).first.reshape({4, 4}), want, 1e-8, name.c_str());
}

TEST(Ssd, AnySplitWithAnyFormsGivesTheWhole) {
  const Ssd in = one_head(at::kDouble);
  for (const auto& [first_name, first] : forms())
    for (const auto& [second_name, second] : forms())
      for (int64_t cut = 0; cut <= 4; ++cut) {
        const std::string what =
            first_name + ", then " + second_name + " from " + std::to_string(cut);
        const auto [y1, s1] = first(narrowed(in, 0, cut), {});
        const auto [y2, s2] = second(narrowed(in, cut, 4 - cut), s1);
        expect_near(at::cat({y1, y2}, 1), golden_y(), 1e-8, what.c_str());
        expect_near(s2, golden_state(), 1e-8, what.c_str());
      }
}

TEST(Ssd, KernelGoldenAndSplits) {
  const at::NoGradGuard no_gradients;
  const Ssd in = one_head(at::kFloat);
  Tensor whole_state = at::zeros({1, 2, 2});
  const Tensor whole = ssd_scan(in, whole_state);
  expect_near(whole, golden_y(), 4e-6);
  expect_near(whole_state.unsqueeze(0), golden_state(), 4e-6);
  for (int64_t cut = 0; cut <= 4; ++cut) {
    Tensor state = at::zeros({1, 2, 2});
    const Tensor y1 = ssd_scan(narrowed(in, 0, cut), state),
                 y2 = ssd_scan(narrowed(in, cut, 4 - cut), state);
    EXPECT_TRUE(at::equal(at::cat({y1, y2}, 1), whole) && at::equal(state, whole_state))
        << "cut at " << cut;
  }
}

/// In float32: heads that share groups, a length that fills no block, a state to begin with; every
/// gradient, those through the final state included.
TEST(Ssd, TrainingFormGivesTheDefinitionAndItsGradients) {
  const auto inputs = [](at::ScalarType type) {
    std::vector<Tensor> x{gen({2, 37, 4, 3}, .7, .1),  0.3 + 0.2 * gen({2, 37, 4}, .4, .2),
                          gen({4}, .5, .1) - 1.5,      gen({2, 37, 2, 5}, .9, .3),
                          gen({2, 37, 2, 5}, .6, -.4), gen({4}, .8, .2),
                          gen({2, 4, 3, 5}, .3, .5)};
    for (Tensor& t : x) t = t.to(type).requires_grad_(true);
    return x;
  };
  const auto run = [](const std::vector<Tensor>& x, const Form& form) {
    const auto [y, state] = form({x[0], x[1], x[2], x[3], x[4], x[5]}, x[6]);
    ((y * gen(y.sizes().vec(), .2, .7)).sum() + (state * gen(state.sizes().vec(), .5, .9)).sum())
        .backward();
    return std::pair(y, state);
  };
  const auto want_in = inputs(at::kDouble), got_in = inputs(at::kFloat);
  const auto [want_y, want_state] =
      run(want_in, [](const Ssd& in, const Tensor& s) { return ssd_recurrent(in, s); });
  const auto [y, state] = run(got_in, [](const Ssd& in, const Tensor& s) { return ssd(in, 8, s); });
  expect_near(y, want_y, 2e-6, "y");
  expect_near(state, want_state, 2e-6, "state");
  const at::NoGradGuard no_gradients;
  const auto of = [](const std::vector<Tensor>& x) {
    return Ssd{x[0], x[1], x[2], x[3], x[4], x[5]};
  };
  expect_near(ssd_y(of(got_in), 8), ssd_recurrent(of(want_in)).first, 2e-6, "y alone");
  for (size_t i = 0; i < want_in.size(); ++i)
    expect_near(got_in[i].grad(), want_in[i].grad(),
                2e-6 * std::max(1.0, want_in[i].grad().abs().max().item<double>()),
                std::to_string(i).c_str());
}

/// Mamba-1's scan as a sum of SSD scans, one per state channel n: heads are its channels, P = N
/// = 1.
struct SelectiveScan {
  Tensor x = tensor(kX, {4, 2}), raw = tensor({0, -1, 1, .5, -.5, 0, .25, -2}, {4, 2}),
         bias = tensor({-1, .5});
  Tensor b = tensor(kB, {4, 2}), c = tensor(kC, {4, 2}), d = tensor({1, .5});
  Tensor a_log = tensor({0, std::log(2.0), 0, std::log(2.0)}, {2, 2});

  std::vector<Tensor> leaves() const { return {x, raw, bias, b, c, d, a_log}; }
  std::pair<Tensor, Tensor> run(const Form& form) const {
    const Tensor dt = ops::softplus(raw + bias);
    Tensor y = d * x;
    std::vector<Tensor> states;
    for (int64_t n = 0; n < 2; ++n) {
      const auto column = [&](const Tensor& t) { return t.select(1, n).reshape({1, 4, 1, 1}); };
      const auto [part, state] = form({x.reshape({1, 4, 2, 1}),
                                       dt.unsqueeze(0),
                                       -a_log.select(1, n).exp(),
                                       column(b),
                                       column(c),
                                       {}},
                                      {});
      y = y + part.reshape({4, 2});
      states.push_back(state.reshape({2}));
    }
    return {y, at::stack(states, 1)};
  }
};

TEST(Ssd, GoldenSelectiveScanAndItsGradients) {
  const Tensor dy = tensor({1, -1, .5, 1, -1, 2, 1, .5}, {4, 2});
  const std::vector<std::pair<const char*, Tensor>> want = {
      {"dx", tensor({1.15845647, -0.99082739, 1.57929811, -4.43859040, -1.31626541, 2.58628376,
                     1.38687101, 0.35070664},
                    {4, 2})},
      {"d raw dt", tensor({0.13603805, 0.39088019, 0.54874512, -5.34926264, 0.12816941, 2.52057340,
                           0.41117481, -0.02947455},
                          {4, 2})},
      {"d bias", tensor({1.22412739, -2.46728359})},
      {"dB", tensor({0.24679157, 0.80498460, 4.20187676, -2.56782750, 2.28868101, 0.06986643,
                     -0.87444865, 0.87444865},
                    {4, 2})},
      {"dC", tensor({0.78733867, 0.39366934, -2.84899369, 5.60205432, -1.33647338, 0.41538079,
                     -0.49936024, 1.31473773},
                    {4, 2})},
      {"dD", tensor({4.25, 4.5})},
      {"dA_log", tensor({0.05960476, -0.29120283, 3.88236761, -0.59649940}, {2, 2})}};
  for (const auto& [name, form] : forms()) {
    const SelectiveScan scan;
    for (const Tensor& leaf : scan.leaves()) leaf.requires_grad_(true);
    const auto [y, state] = scan.run(form);
    expect_near(y,
                tensor({1.46989253, -1.21111548, -0.32727626, -5.61291303, -1.51199796, -1.34247236,
                        3.21986059, 1.68847476},
                       {4, 2}),
                1e-8, name.c_str());
    expect_near(state, tensor({-0.17386905, 1.04599154, -0.65098238, 0.53749239}, {2, 2}), 1e-8,
                name.c_str());
    y.backward(dy);
    for (size_t i = 0; i < want.size(); ++i)
      expect_near(scan.leaves()[i].grad(), want[i].second, 2e-8,
                  (name + ": " + want[i].first).c_str());
  }
}

TEST(Ssd, HugeStepsStayFinite) {
  Ssd in = one_head(at::kDouble);
  in.dt_BTH = in.dt_BTH * 1000;
  in.x_BTHP.requires_grad_(true);
  for (const auto& [name, form] : forms()) {
    in.x_BTHP.mutable_grad() = Tensor();
    const Tensor y = form(in, {}).first;
    y.sum().backward();
    EXPECT_TRUE(at::isfinite(y).all().item<bool>() &&
                at::isfinite(in.x_BTHP.grad()).all().item<bool>())
        << name;
  }
}

}  // namespace
}  // namespace tessera::ops::mamba2_test
