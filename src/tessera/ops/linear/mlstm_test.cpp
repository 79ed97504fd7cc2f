// The mLSTM's gates and read-out on top of the linear recurrence, against independent values.
#include "tessera/ops/linear/mlstm.h"

#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::mlstm_test {
namespace {

struct Cell {
  Tensor q, k, v, i, log_f;  // [1, T, 1, C] and [1, T, 1]

  explicit Cell(at::ScalarType type) {
    const auto heads = [&](const Tensor& x) { return x.to(type).unsqueeze(0).unsqueeze(2); };
    const auto gates = [&](const Tensor& x) { return x.to(type).reshape({1, -1, 1}); };
    q = heads(tensor({1, 2, -.5, 1, 2, 1}, {3, 2}));
    k = heads(tensor({.5, -1, 1, .5, -1, 1}, {3, 2}) / std::sqrt(2.0));
    v = heads(tensor({1, 2, 1, -1, .5, 1, .5, 1, 1}, {3, 3}));  // the last column normalises
    i = gates(tensor({.5, -1, 2}));
    log_f = gates(at::log_sigmoid(tensor({1, -.5, 3})));
  }
  /// h of tokens from .. from + n after the state s, m, which move on.
  Tensor run(int64_t from, int64_t n, Tensor& s, Tensor& m, double eps) const {
    const auto at = [&](const Tensor& x) { return x.narrow(1, from, n); };
    const MlstmGates gates = mlstm_gates(at(log_f), at(i), m);
    const LinearRecurrence in{at(q), at(k) * gates.write_BTH.unsqueeze(-1), at(v),
                              gates.log_decay_BTH};
    m = gates.last_BH;
    if (kernel_serves(Op::linear_recurrence, q)) {
      Tensor state = s.squeeze(0);
      return mlstm_read(linear_recurrence_scan(in, state), gates.m_BTH, eps);
    }
    const auto [y, end] = linear_recurrence_chunked(in, 64, s);
    s = end;
    return mlstm_read(y, gates.m_BTH, eps);
  }
};

TEST(Mlstm, Golden) {
  const Tensor with_eps = tensor(
      {-0.99999906, -1.99999811, -0.55018118, -1.10036235, -0.70176867, -1.06725489}, {1, 3, 1, 2});
  const Tensor without =
      tensor({-1, -2, -0.55018152, -1.10036304, -0.70176980, -1.06725660}, {1, 3, 1, 2});
  for (const auto type : {at::kDouble, at::kFloat})
    for (int64_t cut = 0; cut <= 3; ++cut)
      for (const auto& [eps, want] : {std::pair{1e-6, with_eps}, std::pair{0.0, without}}) {
        const at::AutoGradMode plain(type == at::kDouble);
        const Cell cell(type);
        Tensor s = at::zeros({1, 1, 2, 3}, type), m = at::zeros({1, 1}, type);
        const Tensor y1 = cell.run(0, cut, s, m, eps), y2 = cell.run(cut, 3 - cut, s, m, eps);
        expect_near(at::cat({y1, y2}, 1), want, type == at::kDouble ? 1e-8 : 2e-6,
                    ("cut at " + std::to_string(cut)).c_str());
      }
}

TEST(Mlstm, HugeGatesStayFinite) {
  // unstabilised, e^500 overflows; the output is a ratio and does not
  for (const auto type : {at::kDouble, at::kFloat}) {
    const at::AutoGradMode plain(type == at::kDouble);
    Cell cell(type);
    cell.i = cell.i + 500;
    Tensor s = at::zeros({1, 1, 2, 3}, type), m = at::zeros({1, 1}, type);
    const Tensor h = cell.run(0, 3, s, m, 0);
    // the normaliser is far above e^-m, so that shifting all input gates alike changes nothing
    cell.i = cell.i + 100;
    s = at::zeros_like(s), m = at::zeros_like(m);
    expect_near(cell.run(0, 3, s, m, 0), h, type == at::kDouble ? 1e-12 : 1e-5);
  }
}

TEST(Mlstm, GradientsAgainstDifferences) {
  const auto loss = [](const Tensor& i, const Tensor& log_f) {
    Cell cell(at::kDouble);
    cell.i = i, cell.log_f = log_f;
    Tensor s = at::zeros({1, 1, 2, 3}, at::kDouble), m = at::zeros({1, 1}, at::kDouble);
    return (cell.run(0, 3, s, m, 1e-6) * gen({1, 3, 1, 2}, .7, .3)).sum();
  };
  const Cell cell(at::kDouble);
  const Tensor i = cell.i.clone().requires_grad_(true), f = cell.log_f.clone().requires_grad_(true);
  loss(i, f).backward();
  const at::NoGradGuard no_gradients;
  for (int64_t t = 0; t < 3; ++t)
    for (const bool input : {true, false}) {
      Tensor up = (input ? i : f).detach().clone(), down = up.clone();
      up[0][t][0] += 1e-6;
      down[0][t][0] -= 1e-6;
      const double difference =
          (input ? loss(up, f) - loss(down, f) : loss(i, up) - loss(i, down)).item<double>() / 2e-6;
      EXPECT_NEAR((input ? i : f).grad()[0][t][0].item<double>(), difference, 1e-8)
          << t << (input ? " input" : " forget");
    }
}

}  // namespace
}  // namespace tessera::ops::mlstm_test
