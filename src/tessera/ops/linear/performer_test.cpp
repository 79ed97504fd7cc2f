// FAVOR+ against the published numbers, its definition and softmax attention.
#include "tessera/ops/linear/performer.h"

#include "tessera/ops/form.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::performer_test {
namespace {

Favor golden(at::ScalarType type, FavorKernel kernel, double eps) {
  const auto head = [&](const Tensor& x) { return x.to(type).reshape({1, 4, 1, 2}); };
  return {head(gen({4, 2}, 0.37, 0.11)),
          head(gen({4, 2}, 0.53, 0.29)),
          head(gen({4, 2}, 0.71, 0.05)),
          gen({3, 2}, 1.3, 0.4) * 1.5,
          kernel,
          eps};
}

FavorState zeros(const Favor& in) {
  const int64_t h = in.q_BTHD.size(2), u = in.v_BTHV.size(3) + 1,
                m = in.w_MD.size(0) * (in.kernel == FavorKernel::softmax_hyperbolic ? 2 : 1);
  const auto options = in.q_BTHD.options();
  return {at::zeros({1, h, m, u}, options), at::zeros({1, h, u}, options),
          at::zeros({1, h}, options)};
}

/// Plain form or kernel, as callers choose between them.
Tensor run(const Favor& in, bool causal) {
  if (kernel_serves(Op::favor, in.q_BTHD)) return favor_scan(in, causal, zeros(in));
  return causal ? favor_chunked(in, 3).first : favor_bidirectional(in);
}

TEST(Favor, GoldenG5) {
  const Favor in = golden(at::kDouble, FavorKernel::softmax, 1e-6);
  expect_near(
      favor_query_features(in.q_BTHD, in).reshape({4, 3}),
      tensor({0.5331472865, 0.1695551754, 0.3638630549, 0.3462274678, 0.02855815116, 0.08067266476,
              0.2995797182, 0.02363697847, 0.05105756934, 0.4493665943, 0.1280215535, 0.1413441375},
             {4, 3}),
      1e-9);
  expect_both(
      [](at::ScalarType type) {
        return run(golden(type, FavorKernel::softmax, 1e-6), false).reshape({4, 2});
      },
      tensor({0.2779982034, 0.2739958773, 0.3782843344, 0.3733522327, 0.3868899244, 0.3803683898,
              0.3129394636, 0.3013541556},
             {4, 2}),
      1e-9);
  expect_both(
      [](at::ScalarType type) {
        return run(golden(type, FavorKernel::relu, 1e-3), false).reshape({4, 2});
      },
      tensor({0.5434106434, 0.5605817412, 0.5592280991, 0.5570563332, 0.5619194638, 0.556412814,
              0.5617400315, 0.5562561899},
             {4, 2}),
      1e-9);
}

TEST(Favor, GoldenG5CausalWithTheMaximumOfAllKeys) {
  // The released code takes c over all keys. A state that holds nothing but that maximum, under a
  // key of weight exp(-inf) = 0 and value 0, makes ours do the same.
  Favor in = golden(at::kDouble, FavorKernel::softmax, 1e-6);
  const Tensor y = in.k_BTHD * std::pow(2, -0.25);
  const Tensor top = at::matmul(y, in.w_MD.t()).amax();
  FavorState state = zeros(in);
  state.maximum_BH.fill_(top);
  // a count that is not 0 and adds nothing that double could hold
  state.values_BHU.select(-1, 2).fill_(1e-300);
  expect_near(favor_chunked(in, 2, state).first.reshape({4, 2}),
              tensor({0.04997916927, 0.6889214451, 0.5473826883, 0.7579737454, 0.4799985858,
                      0.475358436, 0.3129394636, 0.3013541556},
                     {4, 2}),
              1e-9);
}

/// The definition row by row: explicit products of features, the maximum of the visible keys.
Tensor by_definition(const Favor& in, bool causal) {
  const int64_t t = in.q_BTHD.size(1), heads = in.q_BTHD.size(2);
  Tensor out = at::zeros_like(in.v_BTHV);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < t; ++i) {
      const int64_t seen = causal ? i + 1 : t;
      const Tensor k = in.k_BTHD[0].select(1, h).narrow(0, 0, seen),
                   v = in.v_BTHV[0].select(1, h).narrow(0, 0, seen),
                   q = in.q_BTHD[0][i][h].unsqueeze(0);
      Tensor w = in.w_MD;
      if (in.kernel == FavorKernel::softmax_hyperbolic) w = at::cat({w, -w});
      Tensor phi_q, phi_k;
      if (in.kernel == FavorKernel::relu) {
        phi_q = at::relu(at::matmul(q, w.t())) + in.eps;
        phi_k = at::relu(at::matmul(k, w.t())) + in.eps;
      } else {
        const double scale = std::pow(static_cast<double>(q.size(1)), -0.25);
        const auto phi = [&](const Tensor& x) {
          const Tensor s = at::matmul(x * scale, w.t());
          const Tensor norm = (x * scale).square().sum(-1, true) / 2;
          return (s - norm - s.max()).exp() + in.eps;
        };
        phi_q = phi(q);
        phi_k = phi(k);
      }
      const Tensor weights = at::matmul(phi_q, phi_k.t());
      // the released guard acts on the product of normalised features
      const double m = in.kernel == FavorKernel::relu ? 1 : static_cast<double>(w.size(0));
      double divisor = weights.sum().item<double>() / m;
      if (std::abs(divisor) <= in.eps) divisor += 2 * in.eps;
      out[0][i][h].copy_((at::matmul(weights, v) / (m * divisor)).squeeze(0));
    }
  return out;
}

TEST(Favor, EveryFormAgainstTheDefinition) {
  for (const FavorKernel kernel :
       {FavorKernel::softmax, FavorKernel::softmax_hyperbolic, FavorKernel::relu}) {
    const auto inputs = [&](at::ScalarType type) {
      return Favor{gen({1, 11, 2, 4}, 1.37, 0.11).to(type) * 2,
                   gen({1, 11, 2, 4}, 1.53, 0.29).to(type) * 2,
                   gen({1, 11, 2, 3}, 0.71, 0.05).to(type),
                   gen({5, 4}, 1.3, 0.4) * 1.5,
                   kernel,
                   1e-3};
    };
    const Favor in = inputs(at::kDouble);
    for (const bool causal : {true, false}) {
      const Tensor want = by_definition(in, causal);
      expect_both([&](at::ScalarType type) { return run(inputs(type), causal); }, want, 1e-12);
    }
    const Tensor want = by_definition(in, true);
    for (const int64_t chunk : {1, 2, 5, 64})
      expect_near(favor_chunked(in, chunk).first, want, 1e-12);
    // the last causal row sees what every row of the other direction sees
    expect_near(run(in, true).select(1, 10), run(in, false).select(1, 10), 1e-12);
  }
}

TEST(Favor, DirectionsAreOrthogonalInBlocks) {
  const Tensor w = favor_directions(RandomKey(3), 11, 4, FavorRows::orthogonal_sqrt_dim);
  for (int64_t begin = 0; begin < 11; begin += 4) {
    const int64_t n = std::min<int64_t>(4, 11 - begin);
    const Tensor block = w.narrow(0, begin, n);
    expect_near(at::matmul(block, block.t()), at::eye(n, at::kDouble) * 4, 1e-13);
  }
  // norms of Gaussian rows: mean square d
  const Tensor g = favor_directions(RandomKey(3), 4000, 4, FavorRows::orthogonal);
  EXPECT_NEAR(g.square().sum(1).mean().item<double>(), 4, 0.2);
}

TEST(Favor, HadamardDirectionsAreProductsOfSigns) {
  constexpr int64_t kD = 8;
  const Tensor w = favor_directions(RandomKey(3), 19, kD, FavorRows::hadamard);
  for (int64_t begin = 0; begin < 19; begin += kD) {
    const int64_t n = std::min<int64_t>(kD, 19 - begin);
    const Tensor block = w.narrow(0, begin, n);
    expect_near(at::matmul(block, block.t()), at::eye(n, at::kDouble) * kD, 1e-13);
  }
  // three matrices of signs, each over sqrt(8), times sqrt(8): multiples of 1 / 8, other ones for
  // each block and key
  const Tensor steps = w * 8;
  expect_near(steps, steps.round(), 1e-12);
  EXPECT_FALSE(at::equal(w.narrow(0, 0, kD), w.narrow(0, kD, kD)));
  EXPECT_FALSE(at::equal(w, favor_directions(RandomKey(4), 19, kD, FavorRows::hadamard)));
  // as for Gaussian rows, the mean of exp(w . x) is exp(|x|^2 / 2)
  const Tensor many = favor_directions(RandomKey(3), 64 * 200, 64, FavorRows::hadamard);
  const Tensor x = gen({64}, 0.7, 0.3), unit = x / x.norm();
  EXPECT_NEAR(at::mv(many, unit).exp().mean().item<double>(), std::exp(0.5), 0.04);
}

TEST(Favor, ManyFeaturesEstimateSoftmaxAttention) {
  Favor in = golden(at::kDouble, FavorKernel::softmax, 0);
  in.w_MD = favor_directions(RandomKey(1), 40000, 2, FavorRows::orthogonal);
  const Tensor q = in.q_BTHD.reshape({4, 2}), k = in.k_BTHD.reshape({4, 2}),
               v = in.v_BTHV.reshape({4, 2});
  const Tensor want = at::matmul(at::softmax(at::matmul(q, k.t()) / std::sqrt(2.0), -1), v);
  expect_near(favor_bidirectional(in).reshape({4, 2}), want, 1e-2);
}

}  // namespace
}  // namespace tessera::ops::performer_test
