// Rows of the recurrent mixers: their scans as the models train with them, against the machine's
// limits and against the same recurrence token by token in tensor operations of libtorch.
//   recurrences_rows [ROW ...] [--repeats N] [--json] [--list]
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <optional>

#include "machine.h"
#include "rows.h"
#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/ops/linear/linear_recurrence.h"
#include "tessera/ops/scan/rg_lru.h"
#include "tessera/ops/scan/selective_scan.h"
#include "tessera/ops/convolution/short_conv.h"
#include "tessera/ops/scan/mamba2.h"
#include "tessera/ops/scan/rwkv4.h"

namespace tessera::bench {
namespace {

using at::Tensor;

/// A program that runs forward, and one that runs backward after it too.
struct Passes {
  std::function<Tensor()> forward;
  std::vector<Tensor> inputs;
  Program both() const {
    return [*this, dy = at::ones_like(forward())] {
      torch::autograd::grad({forward()}, inputs, {dy});
    };
  }
  Program once() const {
    return [*this] { forward(); };
  }
};

Tensor leaf(const Tensor& x) {
  return x.detach().requires_grad_(true);
}

/// Fails loudly when two ways to the same result do not agree.
void expect_same(const char* what, const Tensor& a, const Tensor& b) {
  const double difference = (a - b).abs().max().item<double>(), size = b.abs().max().item<double>();
  if (difference <= 1e-3 * size) return;
  fmt::print(stderr, "{}: results differ by {} of {}\n", what, difference, size);
  std::exit(1);
}

/// What is compared with the forward pass: both passes, or the backward pass without it.
enum class Gradient { both, alone };

/// The rows that every scan has: forward against a loop over tokens in libtorch, and what the
/// gradient costs.
void forward_and_backward(Report& report,
                          const std::string& name,
                          const Passes& ours,
                          const std::function<Tensor()>& loop,
                          double least,
                          Gradient gradient = Gradient::both) {
  {
    const at::NoGradGuard no_gradient;
    expect_same(name.c_str(), ours.forward().flatten(), loop().flatten());
  }
  const auto without_gradient = [&] {
    const at::NoGradGuard no_gradient;
    loop();
  };
  const auto s = report.seconds({ours.once(), ours.both(), without_gradient});
  report.add(
      {name + "/forward", s[2] / s[0], "x", Aim::at_least, least,
       fmt::format("a loop over tokens {}, ours {}", milliseconds(s[2]), milliseconds(s[0]))});
  report.add(
      {name + "/backward", s[1] / s[0] - (gradient == Gradient::alone ? 1 : 0), "x", Aim::at_most,
       3.5,
       fmt::format("forward and backward {}, forward {}", milliseconds(s[1]), milliseconds(s[0]))});
}

// --- Mamba-1 -------------------------------------------------------------------------------------

ops::SelectiveScan mamba1(int64_t t, int64_t e, int64_t n) {
  const Tensor a = -at::arange(1, n + 1, at::kFloat).unsqueeze(1).expand({n, e}).contiguous();
  return {leaf(at::randn({t, e})), leaf(at::randn({t, e}) - 2), leaf(at::randn({e}) * 0.1), leaf(a),
          leaf(at::randn({t, n})), leaf(at::randn({t, n})),     leaf(at::ones({e}))};
}

Passes mamba1_passes(const ops::SelectiveScan& in) {
  return {[in] { return ops::selective_scan(in, {in.x_TE.size(0)}, 64); },
          {in.x_TE, in.dt_TE, in.dt_bias_E, in.a_NE, in.b_TN, in.c_TN, in.d_E}};
}

/// What a model without a kernel runs, step for step mamba_selective_scan of transformers 5 in its
/// layout (the state inside time inside channels): everything discretised at once, then a loop over
/// tokens.
Tensor mamba1_loop(const ops::SelectiveScan& in, const Tensor& x_BET, const Tensor& dt_BET) {
  const Tensor a_EN = in.a_NE.t().contiguous(), b_BTN = in.b_TN.unsqueeze(0),
               c_BTN = in.c_TN.unsqueeze(0);
  const Tensor delta_BET1 = at::softplus(dt_BET + in.dt_bias_E.unsqueeze(1)).unsqueeze(3);
  const Tensor decay_BETN = (a_EN.unsqueeze(1) * delta_BET1).exp(),
               input_BETN = delta_BET1 * b_BTN.unsqueeze(1) * x_BET.unsqueeze(3);
  Tensor state_BEN = at::zeros_like(a_EN).unsqueeze(0);
  std::vector<Tensor> ys;
  for (int64_t i = 0; i < x_BET.size(2); ++i) {
    state_BEN = decay_BETN.select(2, i) * state_BEN + input_BETN.select(2, i);
    ys.push_back(at::matmul(state_BEN, c_BTN.select(1, i).unsqueeze(2)).select(2, 0));
  }
  return at::stack(ys, 2) + x_BET * in.d_E.unsqueeze(1);
}

void mamba1_rows(Report& report) {
  constexpr int64_t kT = 512, kE = 1536, kN = 16;
  report.group("mamba1/scan", [&] {
    const ops::SelectiveScan in = mamba1(kT, kE, kN);
    const Tensor x_BET = in.x_TE.detach().t().contiguous().unsqueeze(0),
                 dt_BET = in.dt_TE.detach().t().contiguous().unsqueeze(0);
    forward_and_backward(
        report, "mamba1/scan", mamba1_passes(in),
        [&] { return mamba1_loop(in, x_BET, dt_BET)[0].t(); }, 20, Gradient::alone);
  });
  report.group("mamba1/exp", [&] {
    const Passes passes = mamba1_passes(mamba1(kT, kE, kN));
    constexpr int64_t kValues = kT * kE * kN;
    const auto s = report.seconds({passes.once(), [] { exp_alone(kValues); }});
    report.add({"mamba1/exp", s[1] / s[0], "x", Aim::at_least, 0.5,
                fmt::format("{:.2f} Gexp/s; exp alone, in the first cache level, {:.2f}",
                            kValues / s[0] / 1e9, kValues / s[1] / 1e9)});
  });
  report.group("mamba1/length", [&] {
    std::vector<double> lengths, bytes;
    std::vector<Program> runs;
    std::string figures, sizes;
    for (const int64_t t : {1024, 2048, 4096, 8192, 16384}) {
      runs.push_back(mamba1_passes(mamba1(t, 768, kN)).both());
      bytes.push_back(static_cast<double>(peak_bytes(runs.back())));
      lengths.push_back(static_cast<double>(t));
      sizes += fmt::format("{}{:.0f}", sizes.empty() ? "" : " ", bytes.back() / 1048576);
    }
    const std::vector<double> times = report.seconds(runs);
    for (const double time : times)
      figures += fmt::format("{}{:.0f}", figures.empty() ? "" : " ", time * 1e3);
    report.add({"mamba1/length/time", exponent(lengths, times), "power", Aim::at_most, 1.1,
                fmt::format("forward and backward at 1k, 2k .. 16k tokens: {} ms", figures)});
    report.add({"mamba1/length/memory", exponent(lengths, bytes), "power", Aim::at_most, 1.1,
                fmt::format("highest at 1k, 2k .. 16k tokens: {} MiB", sizes)});
  });
}

// --- matrix states -------------------------------------------------------------------------------

struct MatrixState {
  ops::LinearRecurrence in;
  std::vector<Tensor> leaves;
};

constexpr int64_t kTokens = 2048, kHeads = 8, kWidth = 64, kChunk = 64;

MatrixState qkv() {
  const auto rows = [] { return leaf(at::randn({1, kTokens, kHeads, kWidth}) / 8); };
  MatrixState m;
  m.in.q_BTHK = rows(), m.in.k_BTHK = rows(), m.in.v_BTHV = rows();
  m.leaves = {m.in.q_BTHK, m.in.k_BTHK, m.in.v_BTHV};
  return m;
}

Tensor log_decays(at::IntArrayRef sizes) {
  return leaf(at::log_sigmoid(at::randn(sizes)) / 16);
}

void matrix_row(Report& report, const std::string& name, const MatrixState& m) {
  const ops::LinearRecurrence& in = m.in;
  forward_and_backward(
      report, name, {[in] { return ops::linear_recurrence_y(in, kChunk); }, m.leaves},
      [in] { return ops::linear_recurrence_recurrent(in).first; }, 10);
}

void matrix_rows(Report& report) {
  report.group("retention", [&] {
    MatrixState m = qkv();
    m.in.log_decay = at::log1p(-at::exp2(-at::arange(5, 5 + kHeads, at::kFloat)));
    matrix_row(report, "retention", m);
  });
  report.group("gla", [&] {
    MatrixState m = qkv();
    m.leaves.push_back(m.in.log_decay = log_decays({1, kTokens, kHeads, kWidth}));
    matrix_row(report, "gla", m);
  });
  report.group("gated_delta", [&] {
    MatrixState m = qkv();
    const Tensor k = at::randn({1, kTokens, kHeads, kWidth});
    m.leaves[1] = m.in.k_BTHK = leaf(k / k.norm(2, {-1}, true));
    m.leaves.push_back(m.in.log_decay = log_decays({1, kTokens, kHeads}));
    m.leaves.push_back(m.in.beta_BTH = leaf(at::rand({1, kTokens, kHeads})));
    matrix_row(report, "gated_delta", m);
  });
  report.group("rwkv6", [&] {
    MatrixState m = qkv();
    m.leaves.push_back(m.in.log_decay = log_decays({1, kTokens, kHeads, kWidth}));
    m.leaves.push_back(m.in.u_HK = leaf(at::randn({kHeads, kWidth})));
    matrix_row(report, "rwkv6", m);
  });
}

void mamba2_rows(Report& report) {
  report.group("mamba2", [&] {
    constexpr int64_t kState = 128;
    const ops::Ssd in{leaf(at::randn({1, kTokens, kHeads, kWidth})),
                      leaf(at::softplus(at::randn({1, kTokens, kHeads}) - 2)),
                      leaf(-at::arange(1, kHeads + 1, at::kFloat)),
                      leaf(at::randn({1, kTokens, 1, kState}) / 8),
                      leaf(at::randn({1, kTokens, 1, kState}) / 8),
                      leaf(at::ones({kHeads}))};
    const Passes ours{[in] { return ops::ssd_y(in, kChunk); },
                      {in.x_BTHP, in.dt_BTH, in.a_H, in.b_BTGN, in.c_BTGN, in.d_H}};
    forward_and_backward(
        report, "mamba2", ours, [&] { return ops::ssd_recurrent(in).first; }, 10);
    // documents of a chunk's length, one after another
    ops::Ssd packed = in;
    packed.documents.assign(kTokens / kChunk, kChunk);
    const Passes documents{[packed] { return ops::ssd_y(packed, kChunk); }, ours.inputs};
    const auto s = report.seconds({ours.both(), documents.both()});
    report.add({"mamba2/documents", s[1] / s[0], "x", Aim::at_most, 1.1,
                fmt::format("forward and backward, one text {}, documents {}", milliseconds(s[0]),
                            milliseconds(s[1]))});
  });
}

// --- states of one number a channel --------------------------------------------------------------

/// Token by token, with the running maximum.
Tensor wkv4_loop(const ops::Wkv4& in) {
  Tensor num = at::zeros_like(in.w_C), den = at::zeros_like(num), top = num - 1e38;
  std::vector<Tensor> ys;
  for (int64_t i = 0; i < in.k_TC.size(0); ++i) {
    const Tensor k = in.k_TC.select(0, i), v = in.v_TC.select(0, i), now = in.u_C + k,
                 most = at::maximum(top, now);
    const Tensor e1 = (top - most).exp(), e2 = (now - most).exp();
    ys.push_back((e1 * num + e2 * v) / (e1 * den + e2));
    const Tensor decayed = top + in.w_C, next = at::maximum(decayed, k);
    const Tensor f1 = (decayed - next).exp(), f2 = (k - next).exp();
    num = f1 * num + f2 * v, den = f1 * den + f2, top = next;
  }
  return at::stack(ys);
}

Tensor rg_lru_loop(const ops::RgLru& in) {
  const Tensor gate = at::sigmoid(in.in_TW), log_decay = -in.scale_W * at::sigmoid(in.rec_TW);
  const Tensor decay = log_decay.exp(), factor = at::sqrt(-at::expm1(2 * log_decay)),
               x = gate * in.x_TW;
  Tensor h = x.select(0, 0);
  std::vector<Tensor> hs{h};
  for (int64_t i = 1; i < in.x_TW.size(0); ++i) {
    h = decay.select(0, i) * h + factor.select(0, i) * x.select(0, i);
    hs.push_back(h);
  }
  return at::stack(hs);
}

void channel_rows(Report& report) {
  constexpr int64_t kC = 1536;
  const auto rows = [] { return leaf(at::randn({kTokens, kC})); };
  report.group("wkv4", [&] {
    const ops::Wkv4 in{rows(), rows(), leaf(-at::rand({kC}) - 0.05), leaf(at::randn({kC}))};
    forward_and_backward(
        report, "wkv4",
        {[in] { return ops::wkv4(in, {kTokens}); }, {in.k_TC, in.v_TC, in.w_C, in.u_C}},
        [&] { return wkv4_loop(in); }, 10);
  });
  report.group("rg_lru", [&] {
    const ops::RgLru in{rows(), rows(), rows(), leaf(at::rand({kC}) * 4 + 1)};
    forward_and_backward(
        report, "rg_lru",
        {[in] { return ops::rg_lru(in, {kTokens}, 64); },
         {in.x_TW, in.in_TW, in.rec_TW, in.scale_W}},
        [&] { return rg_lru_loop(in); }, 10);
  });
  report.group("short_conv", [&] {
    const Tensor x = rows(), w = leaf(at::randn({kC, 4})), b = leaf(at::randn({kC}));
    const Passes ours{
        [=] { return ops::short_conv(x, w, b, kernels::Activation::silu, {kTokens}); }, {x, w, b}};
    const Passes theirs{
        [=] {
          const Tensor padded = at::constant_pad_nd(x.t().unsqueeze(0), {3, 0});
          static constexpr int64_t none = 0, one = 1;
          const at::IntArrayRef step(one), pad(none);
          return at::silu(at::conv1d(padded, w.unsqueeze(1), b, step, pad, step, kC))
              .squeeze(0)
              .t();
        },
        {x, w, b}};
    expect_same("short_conv", ours.forward(), theirs.forward());
    const auto s = report.seconds({ours.once(), theirs.once(), ours.both(), theirs.both()});
    report.add({"short_conv/forward", s[1] / s[0], "x", Aim::at_least, 1,
                fmt::format("conv1d and silu of libtorch {}, ours {}", milliseconds(s[1]),
                            milliseconds(s[0]))});
    report.add({"short_conv/backward", s[3] / s[2], "x", Aim::at_least, 1,
                fmt::format("forward and backward, libtorch {}, ours {}", milliseconds(s[3]),
                            milliseconds(s[2]))});
    const double limit = copy_rate(0.5), rate = 8.0 * kTokens * kC / s[0];
    report.add({"short_conv/copy", rate / limit, "x", Aim::none, 0,
                fmt::format("forward {:.1f} GB/s, a copy {:.1f}", rate / 1e9, limit / 1e9)});
  });
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  at::manual_seed(1);
  return run(argc, argv, "recurrences", {mamba1_rows, mamba2_rows, matrix_rows, channel_rows});
}
