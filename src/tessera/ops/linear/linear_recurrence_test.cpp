// The linear recurrence in its chunked and recurrent forms and its kernel, against values computed
// independently in double, one golden per mechanism that uses it.
#include "tessera/ops/linear/linear_recurrence.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::linear_recurrence_test {
namespace {

using Form = std::function<std::pair<Tensor, Tensor>(const LinearRecurrence&, const Tensor& state)>;

std::vector<std::pair<std::string, Form>> forms() {
  std::vector<std::pair<std::string, Form>> out{
      {"recurrent", [](const LinearRecurrence& in, const Tensor& s) {
         return linear_recurrence_recurrent(in, s);
       }}};
  for (const int64_t chunk : {1, 3, 20, 64})
    out.emplace_back("chunk " + std::to_string(chunk),
                     [chunk](const LinearRecurrence& in, const Tensor& s) {
                       return linear_recurrence_chunked(in, chunk, s);
                     });
  return out;
}

LinearRecurrence mapped(const LinearRecurrence& in,
                        const std::function<Tensor(const Tensor&)>& per_token,
                        const std::function<Tensor(const Tensor&)>& fixed) {
  const auto token = [&](const Tensor& x) { return x.defined() ? per_token(x) : x; };
  const auto other = [&](const Tensor& x) { return x.defined() ? fixed(x) : x; };
  const bool of_tokens = in.log_decay.defined() && in.log_decay.dim() > 1;
  return {per_token(in.q_BTHK), per_token(in.k_BTHK),
          per_token(in.v_BTHV), of_tokens ? token(in.log_decay) : other(in.log_decay),
          token(in.beta_BTH),   token(in.a_BTHK),
          token(in.b_BTHK),     other(in.u_HK)};
}

LinearRecurrence narrowed(const LinearRecurrence& in, int64_t from, int64_t n) {
  return mapped(
      in, [&](const Tensor& x) { return x.narrow(1, from, n); }, [](const Tensor& x) { return x; });
}

LinearRecurrence in_float(const LinearRecurrence& in) {
  const auto convert = [](const Tensor& x) { return x.to(at::kFloat); };
  return mapped(in, convert, convert);
}

/// y [T, V] and S [K, V] of one head, in every form, for every split into two calls, and from the
/// kernel.
void expect_golden(const LinearRecurrence& in, const Tensor& y_TV, const Tensor& s_KV) {
  const int64_t t = y_TV.size(0);
  const Tensor want = y_TV.reshape({1, t, 1, -1});
  const auto check = [&](const Tensor& y, const Tensor& s, double tolerance,
                         const std::string& what) {
    expect_near(y, want, tolerance, what.c_str());
    if (s_KV.defined()) expect_near(s.reshape(s_KV.sizes()), s_KV, tolerance, what.c_str());
  };
  for (const auto& [name, form] : forms())
    for (int64_t cut = 0; cut <= t; ++cut) {
      const auto [y1, s1] = form(narrowed(in, 0, cut), {});
      const auto [y2, s2] = form(narrowed(in, cut, t - cut), s1);
      check(at::cat({y1, y2}, 1), s2, 1e-8, name + ", cut at " + std::to_string(cut));
    }
  const at::NoGradGuard no_gradients;
  Tensor whole_state = at::zeros({1, in.q_BTHK.size(3), y_TV.size(1)});
  const Tensor whole = linear_recurrence_scan(in_float(in), whole_state);
  const double tolerance = 3e-6 * std::max(1.0, y_TV.abs().max().item<double>());
  check(whole, whole_state, tolerance, "kernel");
  for (int64_t cut = 0; cut <= t; ++cut) {
    Tensor state = at::zeros_like(whole_state);
    const Tensor y1 = linear_recurrence_scan(in_float(narrowed(in, 0, cut)), state),
                 y2 = linear_recurrence_scan(in_float(narrowed(in, cut, t - cut)), state);
    EXPECT_TRUE(at::equal(at::cat({y1, y2}, 1), whole) && at::equal(state, whole_state))
        << "kernel, cut at " << cut;
  }
}

Tensor one_head(const Tensor& x_TC) {
  return x_TC.unsqueeze(0).unsqueeze(2);
}

const double kRootHalf = 1 / std::sqrt(2.0);

// the inputs that the linear-attention family shares
Tensor family_q() {
  return tensor({1, .5, -.5, 1, 2, 1}, {3, 2});
}
Tensor family_k() {
  return tensor({.6, .8, 1, 0, -.6, .8}, {3, 2});
}
Tensor family_v() {
  return tensor({1, 2, -1, .5, .5, 1}, {3, 2});
}
Tensor unit(const Tensor& x) {
  return x / x.norm(2, {-1}, true);
}

TEST(LinearRecurrence, GoldenRetention) {
  const Tensor q = tensor({1, 2, -.5, 1, 2, 1, .5, -1}, {4, 2}),
               k = tensor({.5, -1, 1, .5, -1, 1, .25, 2}, {4, 2}) * kRootHalf,
               v = tensor({1, 2, -1, .5, .5, 1, 2, -1}, {4, 2});
  expect_golden({one_head(q), one_head(k), one_head(v), tensor({std::log(0.96875)})},
                tensor({-1.06066017, -2.12132034, -0.85626212, -1.71252424, -2.06607763, 0.14915534,
                        -2.36182577, 1.90547453},
                       {4, 2}),
                tensor({-0.33112183, 0.11288072, 2.19626486, -1.84903417}, {2, 2}));
}

TEST(LinearRecurrence, GoldenNormalisedByAColumnOfOnes) {
  const auto feature = [](const Tensor& x) { return at::elu(x) + 1; };
  const Tensor v = at::cat({family_v(), at::ones({3, 1}, at::kDouble)}, 1);
  const LinearRecurrence in{one_head(feature(family_q())), one_head(feature(family_k())),
                            one_head(v)};
  for (const auto& [name, form] : forms()) {
    const Tensor y = form(in, {}).first.reshape({3, 3});
    expect_near(y.narrow(1, 0, 2) / y.narrow(1, 2, 1),
                tensor({1, 2, 0.17439274, 1.38079456, 0.13966353, 1.20326673}, {3, 2}), 1e-8,
                name.c_str());
  }
}

TEST(LinearRecurrence, GoldenDecayPerChannel) {
  const Tensor g = tensor({.9, .5, .8, .6, .7, .95}, {3, 2}).log();
  expect_golden(
      {one_head(family_q() * kRootHalf), one_head(family_k()), one_head(family_v()), one_head(g)},
      tensor({0.70710678, 1.41421356, 0.52325902, 0.16263456, -0.33375440, 1.80736493}, {3, 2}),
      tensor({-0.664, 0.422, 0.856, 1.712}, {2, 2}));
}

TEST(LinearRecurrence, GoldenDeltaRule) {
  const Tensor beta = tensor({.5, 1, .25}, {1, 3, 1});
  const LinearRecurrence plain{
      one_head(unit(family_q()) * kRootHalf), one_head(family_k()), one_head(family_v()), {}, beta};
  expect_golden(
      plain,
      tensor({0.31622777, 0.63245553, 0.56920998, 0.34785054, -0.49268286, 0.54833895}, {3, 2}),
      tensor({-0.937, 0.401, 0.316, 0.932}, {2, 2}));
  LinearRecurrence gated = plain;
  gated.log_decay = tensor({-.1, -.5, -.2}, {1, 3, 1});
  expect_golden(
      gated,
      tensor({0.31622777, 0.63245553, 0.46966923, 0.14876905, -0.45024914, 0.35519289}, {3, 2}),
      tensor({-0.79620889, 0.27019468, 0.16860497, 0.58282917}, {2, 2}));
  // the same decay, spelt per channel
  gated.log_decay = gated.log_decay.unsqueeze(-1).expand({1, 3, 1, 2});
  expect_golden(
      gated,
      tensor({0.31622777, 0.63245553, 0.46966923, 0.14876905, -0.45024914, 0.35519289}, {3, 2}),
      tensor({-0.79620889, 0.27019468, 0.16860497, 0.58282917}, {2, 2}));
}

// r, k, v and the raw decay of both RWKV goldens
Tensor rwkv_r() {
  return tensor({1, .5, -.5, 1, 2, 1}, {3, 2});
}
Tensor rwkv_k() {
  return tensor({.5, -1, 1, .5, -1, 1}, {3, 2});
}
Tensor rwkv_w() {
  return tensor({-1, 0, .5, -.5, -2, 1}, {3, 2});
}

TEST(LinearRecurrence, GoldenBonus) {
  const Tensor g = minus_exp(rwkv_w());
  expect_near(
      g.exp(),
      tensor({0.69220063, 0.36787944, 0.19229565, 0.54523921, 0.87342302, 0.06598804}, {3, 2}),
      1e-8);
  expect_golden({one_head(rwkv_r()),
                 one_head(rwkv_k()),
                 one_head(family_v()),
                 one_head(g),
                 {},
                 {},
                 {},
                 tensor({.5, -.25}, {1, 2})},
                tensor({0.375, 0.75, -0.875, -2.6875, -3.47794357, -0.70588713}, {3, 2}),
                tensor({-1.28944530, -0.39533305, 0.43102672, 0.94453848}, {2, 2}));
}

TEST(LinearRecurrence, GoldenRankOne) {
  const Tensor rate = tensor({.5, .25, .75, .5, .1, .9}, {3, 2}),
               kk = unit(rwkv_k() * tensor({.7, .9})), k = rwkv_k() * (1 + (rate - 1)),
               g = -std::exp(-0.5) * at::sigmoid(rwkv_w());
  expect_near(
      kk,
      tensor({0.36244626, -0.93200467, 0.84117848, 0.54075759, -0.61394061, 0.78935222}, {3, 2}),
      1e-8);
  expect_golden({one_head(rwkv_r()),
                 one_head(k),
                 one_head(family_v()),
                 one_head(g),
                 {},
                 one_head(-kk),
                 one_head(kk * rate)},
                tensor({0.125, 0.25, -0.15614281, -0.62478562, -1.12401462, 2.02810531}, {3, 2}),
                // the specification's state is value by key
                tensor({-0.63147412, 0.13893362, 0.44088882, 1.14632766}, {2, 2}).t().contiguous());
}

TEST(LinearRecurrence, GoldenConstantDecay) {
  expect_golden({one_head(gen({5, 2}, .7, .1)), one_head(gen({5, 2}, .5, .4)),
                 one_head(gen({5, 2}, .9, -.2)), tensor({-0.04166736})},
                tensor({-0.11936079, 0.38704682, 1.55260804, 1.67753840, -0.14335740, -0.30633737,
                        -2.05213243, -1.04400139, -0.06207207, 0.39302728},
                       {5, 2}),
                tensor({0.23634373, -0.74248011, 0.58412246, -0.13595790}, {2, 2}));
}

TEST(LinearRecurrence, GoldenTiedKeyAndDecay) {
  const Tensor lb = tensor({0.70584007, 0.44978255}),
               g = lb + (1 - lb) * at::sigmoid(gen({3, 2}, .9, .3));
  expect_near(
      g, tensor({0.87449579, 0.84455740, 0.91273179, 0.74427079, 0.80424545, 0.59817409}, {3, 2}),
      1e-8);
  // 1e-8 of the printed lower bounds reach the output
  expect_golden(
      {one_head(at::silu(gen({3, 2}, .7, .1))), one_head(1 - g), one_head(gen({3, 2}, .5, .4)),
       one_head(g.log())},
      tensor({0.03174270, 0.06385142, 0.26132661, 0.31160862, -0.04597394, -0.02625737}, {3, 2}),
      tensor({0.23726504, 0.18541635, 0.44911258, 0.29510169}, {2, 2}));
}

// --- every rule with every decay, several heads and rows
// ------------------------------------------

struct Combination {
  std::string name;
  LinearRecurrence in;
  Tensor state;
};

/// Log decays down to -`strength` per token.
std::vector<Combination> combinations(int64_t b, int64_t t, double strength) {
  constexpr int64_t kH = 2, kK = 3, kV = 4;
  const Tensor q = gen({b, t, kH, kK}, .7, .1), k = unit(gen({b, t, kH, kK}, .5, .4)),
               v = gen({b, t, kH, kV}, .9, -.2), state = gen({b, kH, kK, kV}, .3, .8);
  const auto decay = [&](const std::vector<int64_t>& shape) {
    return -strength * gen(shape, 1.3, .2).square();
  };
  std::vector<Combination> out;
  for (const auto& [decay_name, g] :
       {std::pair{"no decay", Tensor()}, std::pair{"decay per head", decay({kH})},
        std::pair{"decay per token", decay({b, t, kH})},
        std::pair{"decay per channel", decay({b, t, kH, kK})}}) {
    const LinearRecurrence plain{q, k, v, g};
    out.push_back({std::string("plain, ") + decay_name, plain, state});
    LinearRecurrence other = plain;
    other.beta_BTH = gen({b, t, kH}, .6, .9).square();
    out.push_back({std::string("delta, ") + decay_name, other, state});
    other = plain;
    other.a_BTHK = -k, other.b_BTHK = k * gen({b, t, kH, kK}, .4, .5).square();
    out.push_back({std::string("rank one, ") + decay_name, other, state});
    other = plain;
    other.u_HK = gen({kH, kK}, .8, .3);
    out.push_back({std::string("bonus, ") + decay_name, other, state});
    other.q_BTHK = q.narrow(2, 1, 1), other.k_BTHK = k.narrow(2, 0, 1);
    out.push_back({std::string("bonus, shared q and k, ") + decay_name, other, state});
  }
  return out;
}

struct Outcome {
  Tensor y, state;
  std::vector<Tensor> grads;
};

/// Values, and gradients of all inputs through both results.
Outcome outcome(const Form& form, const Combination& c) {
  std::vector<Tensor> leaves;
  const auto leaf = [&](const Tensor& x) {
    leaves.push_back(x.detach().clone().requires_grad_(true));
    return leaves.back();
  };
  const LinearRecurrence in = mapped(c.in, leaf, leaf);
  const Tensor state = leaf(c.state);
  const auto [y, end] = form(in, state);
  ((y * gen(y.sizes().vec(), .37, .9)).sum() + (end * gen(end.sizes().vec(), .71, .2)).sum())
      .backward();
  Outcome out{y.detach(), end.detach(), {}};
  for (const Tensor& x : leaves) out.grads.push_back(x.grad());
  return out;
}

TEST(LinearRecurrence, ChunksOfAnyLengthEqualTheDefinition) {
  for (const int64_t t : {1, 19, 37})
    for (const Combination& c : combinations(2, t, 0.8)) {
      const Outcome want = outcome(forms()[0].second, c);
      for (const auto& [name, form] : forms()) {
        const std::string what = c.name + ", " + name + ", T = " + std::to_string(t);
        const Outcome got = outcome(form, c);
        expect_near(got.y, want.y, 1e-10, what.c_str());
        expect_near(got.state, want.state, 1e-10, what.c_str());
        for (size_t i = 0; i < want.grads.size(); ++i)
          expect_near(got.grads[i], want.grads[i], 1e-9,
                      (what + ", gradient " + std::to_string(i)).c_str());
      }
    }
}

TEST(LinearRecurrence, Float32KeepsItsDigitsThroughStrongDecays) {
  // log decays of -40 a token: factors relative to a chunk's start alone would overflow, and sums
  // in float32 would lose the digits of the short differences
  for (const double strength : {0.01, 40.0})
    for (const Combination& c : combinations(1, 70, strength)) {
      const auto want = linear_recurrence_recurrent(c.in, c.state);
      const Combination single{c.name, in_float(c.in), c.state.to(at::kFloat)};
      const double scale = want.first.abs().max().item<double>();
      const auto chunked = [](const LinearRecurrence& in, const Tensor& s) {
        return linear_recurrence_chunked(in, 64, s);
      };
      const Outcome got = outcome(chunked, single);
      expect_near(got.y, want.first, 1e-5 * scale, c.name.c_str());
      expect_near(got.state, want.second, 1e-5 * std::max(scale, 1.0), c.name.c_str());
      for (const Tensor& g : got.grads) EXPECT_TRUE(at::isfinite(g).all().item<bool>());
    }
}

TEST(LinearRecurrence, FusedFormAndItsGradientsEqualTheDefinition) {
  // lengths on both sides of the checkpoints' interval of 64
  for (const int64_t t : {31, 65, 100})
    for (const Combination& c : combinations(2, t, 0.8)) {
      const std::string what = c.name + ", T = " + std::to_string(t);
      const Outcome want = outcome(forms()[0].second, c);
      const Outcome got = outcome([](const LinearRecurrence& in,
                                     const Tensor& s) { return linear_recurrence_fused(in, s); },
                                  {c.name, in_float(c.in), c.state.to(at::kFloat)});
      const auto check = [&](const Tensor& x, const Tensor& y, double tolerance,
                             const std::string& name) {
        expect_near(x, y, tolerance * std::max(1.0, y.abs().max().item<double>()),
                    (what + name).c_str());
      };
      check(got.y, want.y, 5e-6, ", y");
      check(got.state, want.state, 5e-6, ", state");
      for (size_t i = 0; i < want.grads.size(); ++i)
        check(got.grads[i], want.grads[i], 2e-5, ", gradient " + std::to_string(i));
    }
}

TEST(LinearRecurrence, KernelEqualsTheDefinition) {
  const at::NoGradGuard no_gradients;
  for (const Combination& c : combinations(1, 37, 0.8)) {
    const auto want = linear_recurrence_recurrent(c.in, c.state);
    Tensor state = c.state.squeeze(0).to(at::kFloat);
    const Tensor y = linear_recurrence_scan(in_float(c.in), state);
    const double scale = std::max(1.0, want.first.abs().max().item<double>());
    expect_near(y, want.first, 5e-6 * scale, c.name.c_str());
    expect_near(state.unsqueeze(0), want.second, 5e-6 * scale, c.name.c_str());
  }
}

TEST(LinearRecurrence, OutputsAloneEqualTheDefinitionWithGradientsOrWithout) {
  for (const int64_t t : {1, 37, 300})
    for (const Combination& c : combinations(2, t, 0.8)) {
      LinearRecurrence in = in_float(c.in);
      in.v_BTHV = in.v_BTHV.detach().requires_grad_(true);
      const Tensor want = linear_recurrence_recurrent(c.in).first;
      const double tolerance = 5e-6 * std::max(1.0, want.abs().max().item<double>());
      const Tensor y = linear_recurrence_y(in, 8);
      EXPECT_TRUE(y.requires_grad());
      expect_near(y, want, tolerance, (c.name + ", in training").c_str());
      const at::NoGradGuard no_gradients;
      expect_near(linear_recurrence_y(in, 8), want, tolerance, c.name.c_str());
      expect_near(linear_recurrence_y(c.in, 8), want, 1e-12 * std::max(1.0, tolerance / 5e-6),
                  (c.name + ", in double").c_str());
    }
}

/// G_t = q_t dy_t^T + d_{t+1} o G_{t+1}: the backward pass of a decay per channel written out.
TEST(LinearRecurrence, GradientsAgainstTheAdjointRecurrence) {
  constexpr int64_t kT = 7, kK = 3, kV = 2;
  Combination c;
  c.in = {one_head(gen({kT, kK}, .7, .1)), one_head(gen({kT, kK}, .5, .4)),
          one_head(gen({kT, kV}, .9, -.2)), -one_head(gen({kT, kK}, 1.3, .2).square())};
  c.state = at::zeros({1, 1, kK, kV}, at::kDouble);
  const Tensor q = c.in.q_BTHK.reshape({kT, kK}), k = c.in.k_BTHK.reshape({kT, kK}),
               v = c.in.v_BTHV.reshape({kT, kV}), d = c.in.log_decay.reshape({kT, kK}).exp(),
               dy = gen({1, kT, 1, kV}, .37, .9).reshape({kT, kV});
  std::vector<Tensor> s{at::zeros({kK, kV}, at::kDouble)};
  for (int64_t t = 0; t < kT; ++t)
    s.push_back(d[t].unsqueeze(1) * s.back() + at::outer(k[t], v[t]));
  std::vector<Tensor> dq(kT), dk(kT), dv(kT), dg(kT);
  Tensor g = gen({1, 1, kK, kV}, .71, .2).reshape({kK, kV});
  for (int64_t t = kT - 1; t >= 0; --t) {
    const auto i = static_cast<size_t>(t);
    g = g + at::outer(q[t], dy[t]);
    dq[i] = at::mv(s[i + 1], dy[t]);
    dk[i] = at::mv(g, v[t]);
    dv[i] = at::mv(g.t(), k[t]);
    dg[i] = d[t] * (g * s[i]).sum(1);
    g = d[t].unsqueeze(1) * g;
  }
  for (const auto& [name, form] : forms()) {
    const Outcome got = outcome(form, c);
    const std::vector<std::vector<Tensor>> want{dq, dk, dv, dg};
    for (size_t i = 0; i < want.size(); ++i)
      expect_near(got.grads[i].reshape({kT, -1}), at::stack(want[i]), 1e-10, name.c_str());
    expect_near(got.grads[4].reshape({kK, kV}), g, 1e-10, name.c_str());
  }
}

TEST(LinearRecurrence, DeltaRuleOverwrites) {
  // a repeated key with beta = 1 holds its last value; beta = 0 leaves the state alone
  const Tensor k = tensor({.6, .8, 1, 0, .6, .8}, {3, 2});
  for (const auto& [name, form] : forms()) {
    const LinearRecurrence in{
        one_head(k), one_head(k), one_head(family_v()), {}, at::ones({1, 3, 1}, at::kDouble)};
    expect_near(form(in, {}).first.reshape({3, 2}), family_v(), 1e-12, name.c_str());
    LinearRecurrence idle = in;
    idle.beta_BTH = at::zeros({1, 3, 1}, at::kDouble);
    const Tensor state = gen({1, 1, 2, 2}, .3, .8);
    expect_near(form(idle, state).second, state, 1e-14, name.c_str());
  }
}

TEST(LinearRecurrence, WithoutOrderEveryTokenReadsTheLastState) {
  const LinearRecurrence in = combinations(1, 19, 0.5)[0].in;
  const Tensor state = linear_recurrence_recurrent(in).second;
  const Tensor want = at::einsum("bthk,bhkv->bthv", {in.q_BTHK, state});
  expect_near(linear_recurrence_whole(in), want, 1e-12);
  const at::NoGradGuard no_gradients;
  expect_near(linear_recurrence_whole(in_float(in)), want, 1e-5);
}

TEST(LinearRecurrence, RowDots) {
  const Tensor x = gen({3, 2, 5}, .7, .1), w = gen({2, 5}, .3, .4);
  const Tensor want = at::einsum("nhc,hc->nh", {x, w});
  expect_near(row_dots(x, w), want, 1e-14);
  const at::NoGradGuard no_gradients;
  expect_near(row_dots(x.to(at::kFloat), w.to(at::kFloat)), want, 1e-6);
}

TEST(LinearRecurrence, LogDecays) {
  const Tensor x = tensor({-800, -20, -1, 0, .5, 30});
  const Tensor want = tensor({-800, -20.00000000206115, -1.3132616875182228, -0.6931471805599453,
                              -0.4740769841801067, -9.357622968840175e-14});
  const auto check = [&](const Tensor& got, double tolerance) {
    expect_near(got / want, at::ones_like(want), tolerance);
  };
  check(ops::log_sigmoid(x), 1e-12);
  expect_near(minus_exp(tensor({-1, 0, 2})), tensor({-0.36787944, -1, -7.38905610}), 1e-8);
  // ln(lb + (1 - lb) sigmoid(x)), by hand: sigmoid(ln 3) = 3/4
  const Tensor ln3 = tensor({std::log(3.0), -std::log(3.0), -200}, {3, 1}), lb = tensor({.2});
  const Tensor bounded = tensor({std::log(.8), std::log(.4), std::log(.2)}, {3, 1});
  expect_near(log_sigmoid_above(ln3, lb), bounded, 1e-15);
  expect_near(log_sigmoid_above(ln3, {}), ops::log_sigmoid(ln3), 0);
  const at::NoGradGuard no_gradients;
  check(ops::log_sigmoid(x.to(at::kFloat)), 2e-7);
  expect_near(minus_exp(tensor({-1, 0, 2}).to(at::kFloat)), tensor({-0.36787944, -1, -7.38905610}),
              5e-7);
}

}  // namespace
}  // namespace tessera::ops::linear_recurrence_test
