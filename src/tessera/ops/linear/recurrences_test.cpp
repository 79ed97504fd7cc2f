// RG-LRU and the RWKV-4 average against values computed independently in double, and their kernels
// with gradients against the plain forms.
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/rg_lru.h"
#include "tessera/ops/scan/rwkv4.h"

namespace tessera::ops::recurrences_test {
namespace {

// --- RG-LRU -------------------------------------------------------------------------------------

/// Two blocks of two channels; gates are x_block @ W + b.
struct LruGolden {
  Tensor x = gen({3, 4}, .7, .1), lambda = gen({4}, .5, -.2);

  explicit LruGolden(at::ScalarType type) {
    for (Tensor* leaf : {&x, &lambda}) *leaf = leaf->to(type).requires_grad_(true);
  }
  RgLru in() const {
    const auto gate = [&](double a, double b, double bias_a, double bias_b) {
      const Tensor w = gen({2, 2, 2}, a, b).to(x.scalar_type());
      const Tensor product = at::einsum("thi,hio->tho", {x.reshape({3, 2, 2}), w});
      return product.reshape({3, 4}) + gen({4}, bias_a, bias_b).to(x.scalar_type());
    };
    return {x, gate(.9, .3, .4, .6), gate(.6, .2, .8, -.1), 8 * ops::softplus(lambda)};
  }
};

const Tensor& lru_fresh() {
  static const Tensor h =
      tensor({0.07696112, 0.52943010, 0.46244790, 0.45094346, 0.14537476, -0.31487929, -0.81947038,
              -0.79612118, -0.32647221, 0.06247412, 0.35062456, 0.62648365},
             {3, 4});
  return h;
}
const Tensor& lru_continued() {
  static const Tensor h =
      tensor({0.08129318, 0.52854973, 0.46287659, 0.45380404, 0.14607563, -0.31489385, -0.81946985,
              -0.79612072, -0.32640066, 0.06247386, 0.35062456, 0.62648365},
             {3, 4});
  return h;
}

TEST(RgLru, GoldenInEveryForm) {
  const Tensor start = tensor({.1, -.2, .3, .4});
  for (const int64_t chunk : {1, 2, 3, 64}) {
    const LruGolden golden(at::kDouble);
    expect_near(rg_lru_chunked(golden.in(), chunk).first, lru_fresh(), 1e-8);
    expect_near(rg_lru(golden.in(), {3}, chunk), lru_fresh(), 1e-8);
    const auto [h, last] = rg_lru_chunked(golden.in(), chunk, start);
    expect_near(h, lru_continued(), 1e-8);
    expect_near(last, lru_continued()[2], 1e-8);
    h.backward(gen({3, 4}, .3, .2));
    expect_near(golden.lambda.grad(), tensor({-0.03367378, -0.01897314, -0.00369283, -0.01515483}),
                1e-8);
    expect_near(golden.x.grad()[0], tensor({0.34837053, 0.38003802, 0.03355050, 0.46090196}), 1e-8);
    // a document that begins behind another's last token: positions 5, 0, 1
    const auto in = golden.in();
    const auto part = [&](int64_t from, int64_t n) {
      return RgLru{in.x_TW.narrow(0, from, n), in.in_TW.narrow(0, from, n),
                   in.rec_TW.narrow(0, from, n), in.scale_W};
    };
    expect_near(rg_lru_chunked(part(1, 2), chunk).first[0],
                tensor({0.13469804, -0.32368336, -0.82003393, -0.79619486}), 1e-8);
  }
}

/// A state of ones without input shows the decay itself.
TEST(RgLru, DecayGolden) {
  const Tensor want = tensor({0.04406831, 0.00437652, 0.00143055, 0.00718053});
  const auto decayed = [](at::ScalarType type, const auto& form) {
    auto in = LruGolden(type).in();
    for (Tensor* t : {&in.x_TW, &in.in_TW, &in.rec_TW}) *t = t->narrow(0, 0, 1);
    in.x_TW = at::zeros_like(in.x_TW);
    return form(in, at::ones({4}, at::TensorOptions().dtype(type)))[0];
  };
  expect_near(
      decayed(at::kDouble, [](const RgLru& in,
                              const Tensor& state) { return rg_lru_chunked(in, 4, state).first; }),
      want, 1e-8);
  const at::NoGradGuard no_gradients;
  expect_near(decayed(at::kFloat, [](const RgLru& in,
                                     Tensor state) { return rg_lru_kernel(in, state, false); }),
              want, 1e-7);
}

TEST(RgLru, KernelGoldenAndSplits) {
  const at::NoGradGuard no_gradients;
  const LruGolden golden(at::kFloat);
  const RgLru in = golden.in();
  const auto run = [&](int64_t from, int64_t n, Tensor& state, bool fresh) {
    return rg_lru_kernel({in.x_TW.narrow(0, from, n), in.in_TW.narrow(0, from, n),
                          in.rec_TW.narrow(0, from, n), in.scale_W},
                         state, fresh);
  };
  for (int64_t cut = 0; cut <= 3; ++cut) {
    Tensor state = at::full({4}, 9.0);  // a fresh document does not read it
    const Tensor first = run(0, cut, state, true);
    expect_near(at::cat({first, run(cut, 3 - cut, state, cut == 0)}), lru_fresh(), 1e-6);
    state = at::tensor({.1f, -.2f, .3f, .4f});
    const Tensor again = run(0, cut, state, false);
    expect_near(at::cat({again, run(cut, 3 - cut, state, false)}), lru_continued(), 1e-6);
    expect_near(state, lru_continued()[2], 1e-6);
  }
}

TEST(RgLru, KernelGradientsAgainstThePlainForm) {
  const Lengths lengths{5, 1, 40};
  constexpr int64_t kT = 46, kW = 70;
  const auto leaves = [&](at::ScalarType type) {
    std::vector<Tensor> out{gen({kT, kW}, .7, .1), gen({kT, kW}, .31, 2), gen({kT, kW}, .23, 1),
                            gen({kW}, .9, 0).abs() + 0.1};
    for (Tensor& leaf : out) leaf = leaf.to(type).requires_grad_(true);
    return out;
  };
  const auto run = [&](const std::vector<Tensor>& l) {
    const Tensor h = rg_lru({l[0], l[1], l[2], l[3]}, lengths, 8);
    h.backward(gen({kT, kW}, .19, .5).to(h.scalar_type()));
    return h;
  };
  const auto want = leaves(at::kDouble), got = leaves(at::kFloat);
  expect_near(run(got), run(want), 1e-5);
  for (size_t i = 0; i < got.size(); ++i)
    expect_near(got[i].grad(), want[i].grad(), 1e-5 * want[i].grad().abs().max().item<double>(),
                std::to_string(i).c_str());
}

TEST(RgLru, SlopeOfTheRootIsBounded) {
  // r = sigmoid(-60): a is 1 but for 1e-25, and 1 / m would be 1e12
  Tensor rec = at::full({2, 1}, -60.0, at::kDouble).requires_grad_(true);
  const Tensor one = at::ones({2, 1}, at::kDouble);
  rg_lru({one, one, rec, at::ones({1}, at::kDouble)}, {2}, 4).sum().backward();
  // h_0 = u; h_1 = a u + m u: dh_1/dl = a u - u a^2 min(1/m, 2000)
  const double u = 1 / (1 + std::exp(-1.0)), r = std::exp(-60.0);
  expect_near(rec.grad() / r, tensor({0, -(u - 2000 * u)}, {2, 1}), 1e-6);
}

// --- WKV-4 --------------------------------------------------------------------------------------

struct WkvGolden {
  Tensor k, v = tensor({1, -1, 2, .5, -1, 3, .5, 1}, {4, 2}), decay = tensor({-1, .5}),
            u = tensor({.3, -.2});

  explicit WkvGolden(at::ScalarType type, double second = -.5)
      : k(tensor({.1, 1, second, .2, 2, -1, .7, 0}, {4, 2})) {
    for (Tensor* leaf : {&k, &v, &decay, &u}) *leaf = leaf->to(type).requires_grad_(true);
  }
  Wkv4 in() const { return {k, v, -decay.exp(), u}; }
  Wkv4 part(int64_t from, int64_t n) const {
    return {k.narrow(0, from, n), v.narrow(0, from, n), -decay.exp(), u};
  }
};

const Tensor& wkv_y() {
  static const Tensor y = tensor(
      {1, -1, 1.42555748, -0.59658787, -0.70477026, 0.48480177, -0.42152674, 1.27417447}, {4, 2});
  return y;
}

TEST(Wkv4, GoldenAndGradients) {
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-8}, {at::kFloat, 2e-6}}) {
    const WkvGolden golden(type);
    const Tensor y = wkv4(golden.in(), {4});
    expect_near(y, wkv_y(), tolerance);
    y.backward(tensor({1, .5, -1, 1, .5, 2, 1, -1}, {4, 2}).to(type));
    expect_near(golden.decay.grad(), tensor({-0.10506024, 0.55905184}), tolerance);
    expect_near(golden.u.grad(), tensor({-0.14767227, 1.18318567}), tolerance);
    expect_near(golden.k.grad(),
                tensor({0.37001198, -0.90365943, -0.08021192, 0.43253838, -0.51635650, 0.32363377,
                        0.22655644, 0.14748727},
                       {4, 2}),
                tolerance);
    expect_near(golden.v.grad(),
                tensor({0.50716315, 1.67615048, -0.36085639, 1.30896851, 1.10784423, 0.05281320,
                        0.24584901, -0.53793219},
                       {4, 2}),
                tolerance);
  }
}

TEST(Wkv4, AnySplitGivesTheWhole) {
  const Tensor state =
      tensor({-0.61783790, 1.21547842, 1.52220177, 1.13523488, 1.63212056, 0}, {3, 2});
  for (int64_t cut = 0; cut <= 4; ++cut) {
    const WkvGolden golden(at::kDouble);
    const auto [first, s] = wkv4_parallel(golden.part(0, cut));
    const auto [second, last] = wkv4_parallel(golden.part(cut, 4 - cut), s);
    expect_near(at::cat({first, second}), wkv_y(), 1e-8);
    expect_near(last, state, 1e-8);
    const at::NoGradGuard no_gradients;
    const WkvGolden single(at::kFloat);
    Tensor kernel_state = at::full({3, 2}, 9.0);
    const Tensor y1 = wkv4_kernel(single.part(0, cut), kernel_state, true),
                 y2 = wkv4_kernel(single.part(cut, 4 - cut), kernel_state, cut == 0);
    expect_near(at::cat({y1, y2}), wkv_y(), 1e-6);
    expect_near(kernel_state, state, 1e-6);
  }
}

TEST(Wkv4, AHugeKeyTakesOver) {
  const Tensor want = tensor({1, -1, 2, -0.59658787, 2, 0.48480177, 2, 1.27417447}, {4, 2});
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-8}, {at::kFloat, 1e-6}}) {
    const WkvGolden golden(type, 800);
    const Tensor y = wkv4(golden.in(), {4});
    expect_near(y, want, tolerance);
    y.sum().backward();
    EXPECT_TRUE(at::isfinite(golden.k.grad()).all().item<bool>());
    EXPECT_TRUE(at::isfinite(golden.decay.grad()).all().item<bool>());
  }
}

TEST(Wkv4, KernelGradientsAgainstThePlainForm) {
  const Lengths lengths{5, 1, 40};
  constexpr int64_t kT = 46, kC = 70;
  const auto leaves = [&](at::ScalarType type) {
    std::vector<Tensor> out{2 * gen({kT, kC}, .7, .1), gen({kT, kC}, .31, 2),
                            -gen({kC}, .9, 0).abs() - 0.01, gen({kC}, .4, 1)};
    for (Tensor& leaf : out) leaf = leaf.to(type).requires_grad_(true);
    return out;
  };
  const auto run = [&](const std::vector<Tensor>& l) {
    const Tensor y = wkv4({l[0], l[1], l[2], l[3]}, lengths);
    y.backward(gen({kT, kC}, .19, .5).to(y.scalar_type()));
    return y;
  };
  const auto want = leaves(at::kDouble), got = leaves(at::kFloat);
  expect_near(run(got), run(want), 1e-5);
  for (size_t i = 0; i < got.size(); ++i)
    expect_near(got[i].grad(), want[i].grad(), 2e-5 * want[i].grad().abs().max().item<double>(),
                std::to_string(i).c_str());
}

}  // namespace
}  // namespace tessera::ops::recurrences_test
