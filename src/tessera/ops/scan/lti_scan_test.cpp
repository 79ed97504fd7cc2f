// S4D and S4 kernels, convolutions and recurrences against values computed independently in double.
#include "tessera/ops/scan/lti_scan.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::lti_scan_test {
namespace {

/// Two systems in one channel: A = -1/2 and -1/2 + i pi, C = 1, step 0.1.
DiagonalSystem diagonal(bool bilinear) {
  return {at::log(tensor({.1})),
          at::log(tensor({.5, .5}, {1, 2})),
          tensor({0, M_PI}, {1, 2}),
          tensor({1, 0, 1, 0}, {1, 2, 2}),
          tensor({0}),
          bilinear};
}

TEST(S4d, GoldenKernels) {
  const Tensor zoh = tensor({0.38701121, 0.35034119, 0.30098495, 0.24402016}, {4, 1}),
               bilinear = tensor({0.38576660, 0.34987723, 0.30144490, 0.24536250}, {4, 1});
  for (const int64_t length : {1, 2, 3, 4, 30}) {
    const int64_t n = std::min<int64_t>(4, length);
    expect_near(diagonal_kernel(discretised(diagonal(false)), length).narrow(0, 0, n),
                zoh.narrow(0, 0, n), 1e-8);
    expect_near(diagonal_kernel(discretised(diagonal(true)), length).narrow(0, 0, n),
                bilinear.narrow(0, 0, n), 1e-8);
  }
}

/// HiPPO-LegS of four dimensions as a real matrix, discretised by the bilinear rule with step 0.1.
struct Dense {
  Tensor a = at::zeros({4, 4}, at::kDouble), b = at::zeros({4}, at::kDouble), a_bar, b_bar;
  Dense() {
    for (int64_t i = 0; i < 4; ++i) {
      b[i] = std::sqrt(2.0 * i + 1);
      for (int64_t k = 0; k <= i; ++k)
        a[i][k] = i == k ? -(i + 1.0) : -std::sqrt((2.0 * i + 1) * (2.0 * k + 1));
    }
    const Tensor one = at::eye(4, at::kDouble), inverse = at::inverse(one - 0.05 * a);
    a_bar = at::mm(inverse, one + 0.05 * a);
    b_bar = at::mv(inverse, 0.1 * b);
  }
  Tensor kernel(const Tensor& c, int64_t length) const {
    Tensor x = b_bar;
    std::vector<Tensor> out;
    for (int64_t l = 0; l < length; ++l, x = at::mv(a_bar, x)) out.push_back(at::dot(c, x));
    return at::stack(out);
  }
};

/// V^* of the basis in which A + P P^T is diagonal, one row of each conjugate pair, and the rows'
/// eigenvalues.
std::pair<Tensor, Tensor> diagonal_basis() {
  // eigenvectors of the Hermitian -i (A + P P^T + 1/2)
  const Dense dense;
  const Tensor p = at::sqrt(at::arange(4, at::kDouble) + 0.5);
  const Tensor skew = dense.a + at::outer(p, p) + 0.5 * at::eye(4, at::kDouble);
  const auto [w, v] = at::linalg_eigh(at::complex(at::zeros_like(skew), -skew), "L");
  return {v.narrow(1, 2, 2).conj().resolve_conj().t(), w.narrow(0, 2, 2)};
}

/// The same in the diagonal basis, with C real: there it is the conjugate of what V^* makes of it.
DplrSystem dplr(const Tensor& c = Dense().b) {
  const auto [half, w] = diagonal_basis();
  const auto pairs = [&, basis = half](const Tensor& real) {
    return at::view_as_real(at::mv(basis, real.to(at::kComplexDouble))).unsqueeze(0).contiguous();
  };
  return {at::log(tensor({.1})),
          at::log(tensor({.5, .5}, {1, 2})),
          w.unsqueeze(0),
          pairs(at::sqrt(at::arange(4, at::kDouble) + 0.5)),
          pairs(Dense().b),
          pairs(c) * tensor({1, -1}),
          tensor({0})};
}

TEST(S4, DenseSystemIsTheSpecifiedOne) {
  const Dense dense;
  const Tensor k = dense.kernel(at::ones({4}, at::kDouble), 4);
  expect_near(k, tensor({0.54705220, 0.22343937, 0.06399393, -0.00459942}), 1e-8);
  expect_near(dense.b_bar, tensor({0.09523810, 0.14996111, 0.15992957, 0.14192342}), 1e-8);
  expect_near(dense.a_bar[3], tensor({-0.14192342, -0.27169421, -0.42870143, 0.66666667}), 1e-8);
  const Tensor u = tensor({1, -.5, 2, .25}, {4, 1});
  expect_near(fft_conv(u, k.unsqueeze(1), {4}),
              tensor({0.54705220, -0.05008673, 1.04637864, 0.54704540}, {4, 1}), 1e-8);
}

TEST(S4, GoldenZeroOrderHold) {
  const DenseLtiSystem system = held(dplr());
  // back from real and imaginary parts in the diagonal basis
  const Tensor half = diagonal_basis().first;
  const Tensor to = at::cat({at::real(half), at::imag(half)}), from = at::inverse(to);
  expect_near(at::mm(from, at::mm(system.matrix_HNN[0], to)),
              tensor({0.90483742, 0, 0, 0,                      //
                      -0.14914112, 0.81873075, 0, 0,            //
                      -0.15589508, -0.30175394, 0.74081822, 0,  //
                      -0.12973409, -0.25510951, -0.41707283, 0.67032005},
                     {4, 4}),
              1e-8);
  expect_near(at::mv(from, system.gain_HN[0]),
              tensor({0.09516258, 0.14914112, 0.15589508, 0.12973409}), 1e-8);
}

/// The diagonal basis steps every unit vector into its column of Abar, and a unit input into Bbar.
TEST(S4, GoldenBilinearRule) {
  const LtiSystem system = discretised(dplr());
  const Tensor half = diagonal_basis().first;
  const Tensor to = at::cat({at::real(half), at::imag(half)}), from = at::inverse(to);
  const auto step = [&](double u, const Tensor& x) {
    const Tensor state = at::mv(to, x).reshape({2, 2, 1});
    return at::mv(
        from, lti_recurrent(system, at::full({1, 1}, u, at::kDouble), state).second.reshape({4}));
  };
  const Tensor want = tensor({0.90476190, 0, 0, 0,                      //
                              -0.14996111, 0.81818182, 0, 0,            //
                              -0.15992957, -0.30616469, 0.73913043, 0,  //
                              -0.14192342, -0.27169421, -0.42870143, 0.66666667},
                             {4, 4});
  const Tensor one = at::eye(4, at::kDouble);
  for (int64_t i = 0; i < 4; ++i) expect_near(step(0, one[i]), want.select(1, i), 1e-8);
  expect_near(step(1, at::zeros_like(one[0])),
              tensor({0.09523810, 0.14996111, 0.15992957, 0.14192342}), 1e-8);
}

TEST(S4, GoldenKernelsOfBothRules) {
  const DplrSystem system = dplr(at::ones({4}, at::kDouble));
  const Tensor bilinear = tensor({0.54705220, 0.22343937, 0.06399393, -0.00459942}, {4, 1}),
               zoh = tensor({0.52993287, 0.22122166, 0.06768143, 0.00057333}, {4, 1});
  const Tensor impulse = tensor({1, 0, 0, 0}, {4, 1}), empty = at::zeros({2, 2, 1}, at::kDouble);
  expect_near(dplr_kernel(system, 4), bilinear, 1e-8);
  expect_near(dense_kernel(held(system), 4), zoh, 1e-8);
  expect_near(lti_recurrent(discretised(system), impulse, empty).first, bilinear, 1e-8);
  expect_near(lti_recurrent(held(system), impulse, empty).first, zoh, 1e-8);
  const at::NoGradGuard no_gradients;
  const Tensor input = impulse.to(at::kFloat);
  Tensor state = empty.to(at::kFloat), other = state.clone();
  expect_near(lti_kernel(constants_of(discretised(system)), input, state), bilinear, 2e-6);
  expect_near(lti_kernel(constants_of(held(system)), input, other), zoh, 2e-6);
}

TEST(S4, HeldKernelsOfEveryLengthAreTheRecurrence) {
  const DenseLtiSystem system = held(dplr());
  Tensor impulse = at::zeros({67, 1}, at::kDouble);
  impulse[0] = 1;
  const Tensor empty = at::zeros({2, 2, 1}, at::kDouble);
  const Tensor want = lti_recurrent(system, impulse, empty).first;
  EXPECT_EQ(dense_kernel(system, 0).sizes().vec(), (std::vector<int64_t>{0, 1}));
  for (int64_t length = 1; length <= 67; ++length)
    expect_near(dense_kernel(system, length), want.narrow(0, 0, length), 1e-13);
  // in pieces, from the state between them
  const auto [first, between] = lti_recurrent(system, impulse.narrow(0, 0, 5), empty);
  expect_near(at::cat({first, lti_recurrent(system, impulse.narrow(0, 5, 62), between).first}),
              want, 1e-13);
}

TEST(S4, KernelAndRecurrenceAreThoseOfTheDenseSystem) {
  const Dense dense;
  for (const int64_t length : {1, 2, 5, 64, 301}) {
    const Tensor want = dense.kernel(dense.b, length).unsqueeze(1);
    expect_near(dplr_kernel(dplr(), length), want, 2e-12);
    Tensor impulse = at::zeros({length, 1}, at::kDouble);
    impulse[0] = 1;
    const auto system = discretised(dplr());
    expect_near(lti_recurrent(system, impulse, at::zeros({2, 2, 1}, at::kDouble)).first, want,
                1e-12);
    const at::NoGradGuard no_gradients;
    Tensor state = at::zeros({2, 2, 1});
    expect_near(lti_kernel(constants_of(system), impulse.to(at::kFloat), state), want, 2e-6);
  }
}

TEST(S4, CauchySumsByTheKernelAreThePlainOnes) {
  const auto numbers = [](const std::vector<int64_t>& shape, double a, double b) {
    return at::complex(gen(shape, a, b), gen(shape, 2 * a, b + 1));
  };
  std::vector<std::vector<Tensor>> results;
  for (const auto& form : {cauchy, cauchy_plain}) {
    // poles to the left of the imaginary axis, points to the right
    const std::vector<Tensor> in{(numbers({2, 3}, .7, .1) - 1.5).requires_grad_(true),
                                 numbers({2, 4, 3}, .3, .2).requires_grad_(true),
                                 (numbers({2, 7}, .9, .4) + 1.5).requires_grad_(true)};
    const Tensor sums = form(in[0], in[1], in[2]);
    sums.backward(numbers({2, 4, 7}, .5, .6));
    results.push_back({sums.detach()});
    for (const Tensor& x : in) results.back().push_back(x.grad());
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    expect_near(at::view_as_real(results[0][i].resolve_conj()),
                at::view_as_real(results[1][i].resolve_conj()), 1e-13);
}

void expect_kernel_gradients(const std::function<Tensor(const DplrSystem&)>& kernel) {
  DplrSystem s = dplr();
  const Tensor weights = gen({9, 1}, .7, .3);
  const auto loss = [&] { return (kernel(s) * weights).sum(); };
  for (Tensor* leaf : {&s.log_dt_H, &s.a_log_HM, &s.a_im_HM, &s.p_HM2, &s.b_HM2, &s.c_HM2}) {
    *leaf = leaf->detach().clone().requires_grad_(true);
    loss().backward();
    const Tensor got = leaf->grad().reshape({-1});
    *leaf = leaf->detach();
    Tensor flat = leaf->reshape({-1});
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const double at = flat[i].item<double>();
      flat[i] = at + 1e-5;
      const double up = loss().item<double>();
      flat[i] = at - 1e-5;
      const double down = loss().item<double>();
      flat[i] = at;
      EXPECT_NEAR(got[i].item<double>(), (up - down) / 2e-5, 1e-7);
    }
  }
}

TEST(S4, KernelGradientsAgainstDifferences) {
  expect_kernel_gradients([](const DplrSystem& s) { return dplr_kernel(s, 9); });
  expect_kernel_gradients([](const DplrSystem& s) { return dense_kernel(held(s), 9); });
}

TEST(S4d, KernelAndRecurrenceAgree) {
  for (const bool bilinear : {false, true}) {
    const auto system = discretised(diagonal(bilinear));
    const Tensor u = gen({40, 1}, .9, .2);
    const Tensor want = fft_conv(u, diagonal_kernel(system, 40), {40});
    Tensor direct = at::zeros_like(want);
    const Tensor k = diagonal_kernel(system, 40);
    for (int64_t t = 0; t < 40; ++t)
      for (int64_t i = 0; i <= t; ++i) direct[t] += k[t - i] * u[i];
    expect_near(want, direct, 1e-13);
    expect_near(lti_recurrent(system, u, at::zeros({2, 2, 1}, at::kDouble)).first, want, 1e-12);
    const at::NoGradGuard no_gradients;
    Tensor state = at::zeros({2, 2, 1});
    expect_near(lti_kernel(constants_of(system), u.to(at::kFloat), state), want, 4e-6);
  }
}

TEST(Lti, ChunksFromAStateAreTheRecurrence) {
  // channels with a matrix each; the leaves are real
  constexpr int64_t kH = 3, kM = 2;
  for (int kind = 0; kind < 3; ++kind)
    for (const int64_t t : {5, 32, 71}) {
      const auto run = [&](bool chunked) {
        std::vector<Tensor> x{
            gen({kH}, .3, .1) - 2,    gen({kH, kM}, .7, .2) - 0.5, gen({kH, kM}, .9, .3) + 1,
            gen({kH, kM, 2}, .4, .4), gen({kH, kM, 2}, .5, .5),    gen({kH, kM, 2}, .6, .6),
            gen({kH}, .8, .7),        gen({t, kH}, .37, .8),       gen({2, kM, kH}, .21, .9)};
        for (Tensor& one : x) one.requires_grad_(true);
        const auto go_on = [&](const auto& s) {
          return chunked ? lti_chunked(s, chunk_of(s), x[7], x[8]) : lti_recurrent(s, x[7], x[8]);
        };
        const DplrSystem low_rank{x[0], x[1], x[2], x[3], x[4], x[5], x[6]};
        const auto [y, last] =
            kind == 0   ? go_on(discretised(DiagonalSystem{x[0], x[1], x[2], x[5], x[6]}))
            : kind == 1 ? go_on(discretised(low_rank))
                        : go_on(held(low_rank));
        ((y * gen({t, kH}, .31, .4)).sum() + (last * gen({2, kM, kH}, .23, .5)).sum()).backward();
        std::vector<Tensor> out{y.detach(), last.detach()};
        for (const Tensor& one : x)
          out.push_back(one.grad().defined() ? one.grad() : at::zeros_like(one));
        return out;
      };
      const auto want = run(false), got = run(true);
      for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], 1e-11);
    }
}

TEST(FftConv, HyenaGolden) {
  const Tensor x0 = tensor({1, .5, -1, 2}), x1 = tensor({.5, 1, 2, -1}), v = tensor({1, -1, .5, 2}),
               k = tensor({1, .5, .25, .125}, {4, 1});
  const Tensor z = (v * x1).unsqueeze(1);
  expect_near((fft_conv(z, k, {4}) + 0.1 * z).squeeze(1) * x0,
              tensor({0.55, -0.425, -0.725, -3.775}), 1e-14);
}

TEST(FftConv, DocumentsDoNotMeet) {
  const Tensor u = gen({12, 3}, .7, .1), k = gen({9, 3}, .3, .4);
  for (const Lengths& lengths : {Lengths{4, 4, 4}, Lengths{9, 1, 2}}) {
    const Tensor y = fft_conv(u, k, lengths);
    int64_t first = 0;
    for (const int64_t length : lengths) {
      for (int64_t t = 0; t < length; ++t) {
        Tensor want = at::zeros({3}, at::kDouble);
        for (int64_t i = 0; i <= t; ++i) want += k[t - i] * u[first + i];
        expect_near(y[first + t], want, 1e-13);
      }
      first += length;
    }
  }
}

}  // namespace
}  // namespace tessera::ops::lti_scan_test
