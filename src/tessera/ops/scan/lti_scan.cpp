#include "tessera/ops/scan/lti_scan.h"

#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/linalg_matrix_exp.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <complex>

#include "tessera/kernels/scan/cauchy.h"
#include "tessera/kernels/scan/lti_scan.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor wide_double(const Tensor& t) {
  return t.to(at::kDouble);
}
Tensor complex_of(const Tensor& pairs) {
  return at::complex(wide_double(pairs.select(-1, 0)), wide_double(pairs.select(-1, 1)));
}
Tensor state_matrix(const Tensor& a_log, const Tensor& a_im) {
  return at::complex(-wide_double(a_log).exp(), wide_double(a_im));
}
Tensor steps(const Tensor& log_dt_H) {
  return wide_double(log_dt_H).exp().unsqueeze(-1);
}
/// 2 Re sum conj(p) v over the pairs.
Tensor along(const Tensor& p, const Tensor& v) {
  return 2 * at::real(p.conj() * v).sum(-1);
}

struct Cauchy : torch::autograd::Function<Cauchy> {
  static kernels::CauchySums describe(const Tensor& lambda_HM,
                                      const Tensor& w_HKM,
                                      const Tensor& z_HL) {
    return {z_HL.size(0),       lambda_HM.size(1), z_HL.size(1),
            numbers(lambda_HM), numbers(w_HKM),    numbers(z_HL)};
  }
  static const double* numbers(const Tensor& t) {
    return reinterpret_cast<const double*>(t.const_data_ptr<c10::complex<double>>());
  }
  static double* numbers_to_write(const Tensor& t) {
    return reinterpret_cast<double*>(t.data_ptr<c10::complex<double>>());
  }
  static Tensor forward(AutogradContext* context,
                        const Tensor& lambda_HM,
                        const Tensor& w_HKM,
                        const Tensor& z_HL) {
    const variable_list in{lambda_HM.contiguous(), w_HKM.contiguous(), z_HL.contiguous()};
    context->save_for_backward(in);
    Tensor out = at::empty({z_HL.size(0), w_HKM.size(1), z_HL.size(1)}, z_HL.options());
    kernels::cauchy_sums(describe(in[0], in[1], in[2]), numbers_to_write(out));
    return out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list in = context->get_saved_variables();
    const Tensor d_sums = gradients[0].resolve_conj().contiguous();
    variable_list out;
    for (const Tensor& x : in) out.push_back(at::empty_like(x));
    kernels::cauchy_gradients(describe(in[0], in[1], in[2]),
                              {numbers(d_sums), numbers_to_write(out[0]), numbers_to_write(out[1]),
                               numbers_to_write(out[2])});
    return out;
  }
};

/// The generating function's values 2 / (1 + w) [k_CB - k_CP k_PB / (1 + k_PP)] for some points w.
Tensor generating(const Tensor& lambda,
                  const Tensor& p,
                  const Tensor& b,
                  const Tensor& c,
                  const Tensor& dt_H1,
                  const Tensor& w_L) {
  const Tensor z_HL = 2 / dt_H1 * ((1 - w_L) / (1 + w_L));
  const Tensor p_star = p.conj().resolve_conj();
  const Tensor weights = at::stack({c * b, c * p, p_star * b, p_star * p}, 1);
  const auto k = cauchy(lambda, weights, z_HL).unbind(1);
  return 2 / (1 + w_L) * (k[0] - k[1] * k[2] / (1 + k[3]));
}

/// `generating` over blocks of points; the backward pass computes each block again.
struct Generating : torch::autograd::Function<Generating> {
  static constexpr int64_t kElements = int64_t{1} << 20;  // that a block holds at most, about

  /// Points at a time: the kernel holds sums and their gradients, the plain form whole matrices.
  static int64_t block_of(const Tensor& lambda) {
    const int64_t of_point =
        on_cpu(form_of(Op::cauchy, lambda)) ? 8 * lambda.size(0) : lambda.numel();
    return std::max<int64_t>(1, kElements / std::max<int64_t>(1, of_point));
  }
  static Tensor forward(AutogradContext* context,
                        const Tensor& lambda,
                        const Tensor& p,
                        const Tensor& b,
                        const Tensor& c,
                        const Tensor& dt,
                        const Tensor& w) {
    context->save_for_backward({lambda, p, b, c, dt, w});
    std::vector<Tensor> out;
    for (const Tensor& points : w.split(block_of(lambda)))
      out.push_back(generating(lambda, p, b, c, dt, points));
    return at::cat(out, 1);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode record(true);
    variable_list leaves, sums;
    for (size_t i = 0; i < 5; ++i) leaves.push_back(saved[i].detach().requires_grad_(true));
    int64_t first = 0;
    for (const Tensor& points : saved[5].split(block_of(saved[0]))) {
      const Tensor y = generating(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], points);
      const auto part =
          torch::autograd::grad({y}, leaves, {gradients[0].narrow(1, first, points.size(0))});
      first += points.size(0);
      for (size_t i = 0; i < part.size(); ++i)
        if (sums.size() <= i)
          sums.push_back(part[i]);
        else
          sums[i] = sums[i] + part[i];
    }
    sums.emplace_back();
    return sums;
  }
};

}  // namespace

Tensor cauchy_plain(const Tensor& lambda_HM, const Tensor& w_HKM, const Tensor& z_HL) {
  const auto over = [&](const Tensor& poles) {
    return (z_HL.unsqueeze(1) - poles.unsqueeze(2)).reciprocal();
  };
  return ops::product(w_HKM, over(lambda_HM)) +
         ops::product(w_HKM.conj().resolve_conj(), over(lambda_HM.conj().resolve_conj()));
}

Tensor cauchy(const Tensor& lambda_HM, const Tensor& w_HKM, const Tensor& z_HL) {
  if (!on_cpu(form_of(Op::cauchy, z_HL))) return cauchy_plain(lambda_HM, w_HKM, z_HL);
  require(w_HKM.size(1) == kernels::kCauchyWeights, "cauchy", "{} sums", w_HKM.size(1));
  return Cauchy::apply(lambda_HM, w_HKM, z_HL);
}

namespace {

/// a b of complex numbers, element by element; b broadcasts. By real products: libtorch computes
/// the last complex numbers of a thread's share by another formula than whole vectors.
Tensor product_of(const Tensor& a, const Tensor& b) {
  const Tensor x = at::real(a), y = at::imag(a), u = spread(at::real(b), x),
               v = spread(at::imag(b), x);
  return at::complex(x * u - y * v, x * v + y * u);
}

}  // namespace

Tensor fft_conv(const Tensor& u_NH, const Tensor& k_LH, const Lengths& lengths) {
  const auto type = wide(u_NH);
  return over_documents(lengths, [&](const auto& rows_of) {
    const Tensor u_BTH = rows_of(u_NH).to(type);
    const int64_t tokens = u_BTH.size(1);
    if (tokens == 0) return u_BTH.flatten(0, 1);
    // twice the length: nothing wraps around
    const Tensor u = at::fft_rfft(u_BTH, 2 * tokens, 1),
                 k = at::fft_rfft(k_LH.narrow(0, 0, tokens).to(type), 2 * tokens, 0);
    return at::fft_irfft(product_of(u, k), 2 * tokens, 1).narrow(1, 0, tokens).flatten(0, 1);
  });
}

LtiSystem discretised(const DiagonalSystem& s) {
  const Tensor a = state_matrix(s.a_log_HM, s.a_im_HM), dt = steps(s.log_dt_H);
  LtiSystem out;
  if (s.bilinear) {
    const Tensor inverse = (1 - dt / 2 * a).reciprocal();
    out.decay_HM = inverse * (1 + dt / 2 * a);
    out.gain_HM = dt * inverse;
  } else {
    out.decay_HM = (dt * a).exp();
    out.gain_HM = (out.decay_HM - 1) / a;
  }
  out.out_HM = complex_of(s.c_HM2);
  out.skip_H = wide_double(s.skip_H);
  return out;
}

Tensor diagonal_kernel(const LtiSystem& s, int64_t length) {
  if (length == 0) return at::zeros({0, s.skip_H.size(0)}, s.skip_H.options());
  const auto block = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
  const Tensor powers = at::arange(block, s.skip_H.options()).to(s.decay_HM.scalar_type());  // [q]
  const Tensor log_decay = s.decay_HM.log().unsqueeze(-1);
  // E^(q i + j) = E^(q i) E^j; the real part of a product of complex matrices by two real ones
  const Tensor inner = (log_decay * powers).exp();
  const Tensor outer = (log_decay * (powers * static_cast<double>(block))).exp() *
                       (s.out_HM * s.gain_HM).unsqueeze(-1);
  const Tensor k_Hqq = 2 * (ops::product(at::real(outer).transpose(1, 2), at::real(inner)) -
                            ops::product(at::imag(outer).transpose(1, 2), at::imag(inner)));
  return k_Hqq.flatten(1, 2).narrow(1, 0, length).t();
}

LtiSystem discretised(const DplrSystem& s) {
  const Tensor a = state_matrix(s.a_log_HM, s.a_im_HM), dt = steps(s.log_dt_H),
               p = complex_of(s.p_HM2);
  // (I - dt/2 A)^-1 by Woodbury: d is the diagonal part's inverse
  const Tensor d = (1 - dt / 2 * a).reciprocal();
  LtiSystem out;
  out.decay_HM = d * (1 + dt / 2 * a);
  out.gain_HM = d * dt * complex_of(s.b_HM2);
  out.out_HM = complex_of(s.c_HM2);
  out.skip_H = wide_double(s.skip_H);
  out.row_HM = p;
  out.column_HM = d * dt / 2 * p;
  out.feedback_H = (1 + along(p, out.column_HM)).reciprocal();
  return out;
}

Tensor dplr_kernel(const DplrSystem& s, int64_t length) {
  const int64_t points = 4 * std::max<int64_t>(1, length);  // wraps around after `points`
  const double radius = std::pow(1e-13, 1.0 / static_cast<double>(points));
  const auto options = at::TensorOptions().dtype(at::kDouble).device(s.log_dt_H.device());
  const Tensor angle =
      at::arange(points / 2 + 1, options) * (-2 * M_PI / static_cast<double>(points));
  const Tensor w = at::polar(at::full_like(angle, radius), angle);
  const Tensor values = Generating::apply(state_matrix(s.a_log_HM, s.a_im_HM), complex_of(s.p_HM2),
                                          complex_of(s.b_HM2), complex_of(s.c_HM2),
                                          steps(s.log_dt_H).to(at::kComplexDouble), w);
  const Tensor k_HL = at::fft_irfft(values, points, 1).narrow(1, 0, length);
  return (k_HL * at::pow(radius, -at::arange(length, options))).t();
}

DenseLtiSystem held(const DplrSystem& s) {
  const Tensor a = state_matrix(s.a_log_HM, s.a_im_HM), dt_H11 = steps(s.log_dt_H).unsqueeze(-1);
  const auto parts = [](const Tensor& v_HM) {
    return at::cat({at::real(v_HM), at::imag(v_HM)}, 1);
  };
  // diag(a) on real and imaginary parts, less P times 2 Re(P^* .)
  const Tensor re = at::diag_embed(at::real(a)), im = at::diag_embed(at::imag(a));
  const Tensor p_HN = parts(complex_of(s.p_HM2));
  const std::vector<int64_t> sizes_HNN{p_HN.size(0), p_HN.size(1), p_HN.size(1)};
  const Tensor a_HNN =
      at::cat({at::cat({re, -im}, 2), at::cat({im, re}, 2)}, 1) -
      2 * spread(p_HN.unsqueeze(2), sizes_HNN) * spread(p_HN.unsqueeze(1), sizes_HNN);
  const Tensor b_HN1 = parts(complex_of(s.b_HM2)).unsqueeze(2);
  const Tensor rates = dt_H11 * at::cat({a_HNN, b_HN1}, 2);
  const int64_t n = a_HNN.size(1);
  const Tensor both = at::linalg_matrix_exp(at::constant_pad_nd(rates, {0, 0, 0, 1}));
  DenseLtiSystem out;
  out.matrix_HNN = both.narrow(1, 0, n).narrow(2, 0, n);
  out.gain_HN = both.narrow(1, 0, n).select(2, n);
  out.out_HN = 2 * parts(complex_of(s.c_HM2).conj().resolve_conj());
  out.skip_H = wide_double(s.skip_H);
  return out;
}

Tensor dense_kernel(const DenseLtiSystem& s, int64_t length) {
  if (length == 0) return at::zeros({0, s.skip_H.size(0)}, s.skip_H.options());
  // A^j B for the j of a block, then C A^(block i) for all blocks: twice as many a product
  Tensor columns = s.gain_HN.unsqueeze(2), rows = s.out_HN.unsqueeze(1), power = s.matrix_HNN;
  for (; columns.size(2) * columns.size(2) < length; power = ops::product(power, power))
    columns = at::cat({columns, ops::product(power, columns)}, 2);
  for (; rows.size(1) * columns.size(2) < length; power = ops::product(power, power))
    rows = at::cat({rows, ops::product(rows, power)}, 1);
  return ops::product(rows, columns).flatten(1, 2).narrow(1, 0, length).t();
}

std::pair<Tensor, Tensor> lti_recurrent(const DenseLtiSystem& s,
                                        const Tensor& u_TH,
                                        const Tensor& state_2MH) {
  const auto type = wide(u_TH);
  const Tensor matrix = s.matrix_HNN.to(type), gain = s.gain_HN.to(type), out = s.out_HN.to(type),
               skip = s.skip_H.to(type);
  Tensor x_HN = state_2MH.flatten(0, 1).to(type).t();
  std::vector<Tensor> ys;
  for (int64_t t = 0; t < u_TH.size(0); ++t) {
    const Tensor u = u_TH.select(0, t).to(type);
    x_HN = ops::product(matrix, x_HN.unsqueeze(2)).squeeze(2) + gain * u.unsqueeze(1);
    ys.push_back((out * x_HN).sum(1) + skip * u);
  }
  return {ys.empty() ? u_TH : at::stack(ys).to(u_TH.scalar_type()),
          x_HN.t().reshape(state_2MH.sizes())};
}

namespace {

/// x [..., H, M] after a token without input.
Tensor free_step(const LtiSystem& s, const Tensor& x) {
  if (!s.row_HM.defined()) return s.decay_HM * x;
  const Tensor w = s.decay_HM * x - s.column_HM * along(s.row_HM, x).unsqueeze(-1);
  return w - s.column_HM * (s.feedback_H * along(s.row_HM, w)).unsqueeze(-1);
}
/// r with 2 Re sum r' x = 2 Re sum r free_step(x).
Tensor free_step_transposed(const LtiSystem& s, const Tensor& r_HM) {
  if (!s.row_HM.defined()) return r_HM * s.decay_HM;
  const Tensor p = s.row_HM.conj();
  const auto read = [&](const Tensor& r) { return 2 * at::real(r * s.column_HM).sum(-1); };
  const Tensor w = r_HM - (s.feedback_H * read(r_HM)).unsqueeze(-1) * p;
  return w * s.decay_HM - read(w).unsqueeze(-1) * p;
}
/// The state after one input of 1.
Tensor after_impulse(const LtiSystem& s) {
  if (!s.row_HM.defined()) return s.gain_HM;
  return s.gain_HM - s.column_HM * (s.feedback_H * along(s.row_HM, s.gain_HM)).unsqueeze(-1);
}

/// Real and imaginary parts one after another, [..., 2 M].
Tensor parts(const Tensor& x) {
  return at::cat({at::real(x), at::imag(x)}, -1);
}

}  // namespace

std::pair<Tensor, Tensor> lti_recurrent(const LtiSystem& s,
                                        const Tensor& u_TH,
                                        const Tensor& state_2MH) {
  const auto type = wide(u_TH);
  const auto complex_type = type == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  const auto cast = [&](const Tensor& t) { return t.to(complex_type); };
  const Tensor decay = cast(s.decay_HM), gain = cast(s.gain_HM), out = cast(s.out_HM),
               skip = s.skip_H.to(type);
  Tensor x = at::complex(state_2MH.select(0, 0).to(type).t(), state_2MH.select(0, 1).to(type).t());
  std::vector<Tensor> ys;
  for (int64_t t = 0; t < u_TH.size(0); ++t) {
    const Tensor u = u_TH.select(0, t).to(type);
    const Tensor before = x;
    x = decay * x + gain * u.unsqueeze(-1);
    if (s.row_HM.defined()) {
      const Tensor p = cast(s.row_HM), f = cast(s.column_HM);
      x = x - f * along(p, before).unsqueeze(-1);
      x = x - f * (s.feedback_H.to(type) * along(p, x)).unsqueeze(-1);
    }
    ys.push_back(2 * at::real(out * x).sum(-1) + skip * u);
  }
  return {ys.empty() ? u_TH : at::stack(ys).to(u_TH.scalar_type()),
          at::stack({at::real(x).t(), at::imag(x).t()})};
}

namespace {

constexpr int64_t kChunk = 32;  // tokens, a power of two

/// From y_l = k_l u, the states after l more tokens [H, L, S], what they are read by, and the map
/// of one token.
LtiChunk chunk_from(const Tensor& k_HL,
                    const Tensor& inputs_HLS,
                    const Tensor& reads_HLS,
                    const Tensor& step_HSS) {
  LtiChunk c;
  c.tokens = kChunk;
  // row t of the Toeplitz matrix: k_t, k_{t-1}, ..., k_0, 0, ...
  c.within_HLL = at::constant_pad_nd(k_HL.flip(1), {0, kChunk - 1}).unfold(1, kChunk, 1).flip(1);
  c.read_HLS = reads_HLS;
  c.write_HLS = inputs_HLS.flip(1);
  c.carry_HSS = step_HSS;
  for (int64_t n = 1; n < kChunk; n *= 2) c.carry_HSS = ops::product(c.carry_HSS, c.carry_HSS);
  return c;
}

}  // namespace

LtiChunk chunk_of(const LtiSystem& s) {
  std::vector<Tensor> inputs{after_impulse(s)}, reads{free_step_transposed(s, s.out_HM)};
  while (static_cast<int64_t>(inputs.size()) < kChunk) {
    inputs.push_back(free_step(s, inputs.back()));
    reads.push_back(free_step_transposed(s, reads.back()));
  }
  const Tensor inputs_HLM = at::stack(inputs, 1), reads_HLM = at::stack(reads, 1);
  const int64_t m = s.out_HM.size(1);
  const Tensor one = at::eye(m, s.out_HM.options()).unsqueeze(1).expand({m, s.out_HM.size(0), m});
  const c10::complex<double> i(0, 1);
  // y = 2 Re sum r x = sum 2 Re r Re x - 2 Im r Im x
  return chunk_from(2 * at::real(s.out_HM.unsqueeze(1) * inputs_HLM).sum(-1), parts(inputs_HLM),
                    at::cat({2 * at::real(reads_HLM), -2 * at::imag(reads_HLM)}, -1),
                    parts(free_step(s, at::cat({one, one * i}))).transpose(0, 1));
}

LtiChunk chunk_of(const DenseLtiSystem& s) {
  const Tensor step = s.matrix_HNN.transpose(1, 2);  // of rows
  std::vector<Tensor> inputs{s.gain_HN.unsqueeze(1)},
      reads{ops::product(s.out_HN.unsqueeze(1), s.matrix_HNN)};
  while (static_cast<int64_t>(inputs.size()) < kChunk) {
    inputs.push_back(ops::product(inputs.back(), step));
    reads.push_back(ops::product(reads.back(), s.matrix_HNN));
  }
  const Tensor inputs_HLN = at::cat(inputs, 1);
  return chunk_from((s.out_HN.unsqueeze(1) * inputs_HLN).sum(-1), inputs_HLN, at::cat(reads, 1),
                    step);
}

namespace {

template <class System>
std::pair<Tensor, Tensor> in_chunks(const System& s,
                                    const LtiChunk& c,
                                    const Tensor& u_TH,
                                    const Tensor& state_2MH) {
  const int64_t t = u_TH.size(0), h = u_TH.size(1), chunks = t / c.tokens,
                whole = chunks * c.tokens;
  if (chunks == 0) return lti_recurrent(s, u_TH, state_2MH);
  const auto type = wide(u_TH);
  // [H, chunks, tokens]
  const Tensor u = u_TH.narrow(0, 0, whole).to(type).t().reshape({h, chunks, c.tokens});
  const Tensor written = ops::product(u, c.write_HLS.to(type)), carry = c.carry_HSS.to(type);
  Tensor x = state_2MH.to(type).permute({2, 0, 1}).reshape({h, 1, -1});
  std::vector<Tensor> before;
  for (const Tensor& one : written.split(1, 1)) {
    before.push_back(x);
    x = ops::product(x, carry) + one;
  }
  const Tensor y = ops::product(u, c.within_HLL.to(type).transpose(1, 2)) +
                   ops::product(at::cat(before, 1), c.read_HLS.to(type).transpose(1, 2)) +
                   s.skip_H.to(type).view({h, 1, 1}) * u;
  const Tensor y_TH = y.reshape({h, whole}).t().to(u_TH.scalar_type()),
               state = x.reshape({h, 2, -1}).permute({1, 2, 0});
  if (whole == t) return {y_TH, state};
  const auto [rest, last] = lti_recurrent(s, u_TH.narrow(0, whole, t - whole), state);
  return {at::cat({y_TH, rest}), last};
}

}  // namespace

std::pair<Tensor, Tensor> lti_chunked(const LtiSystem& s,
                                      const LtiChunk& c,
                                      const Tensor& u_TH,
                                      const Tensor& state_2MH) {
  return in_chunks(s, c, u_TH, state_2MH);
}
std::pair<Tensor, Tensor> lti_chunked(const DenseLtiSystem& s,
                                      const LtiChunk& c,
                                      const Tensor& u_TH,
                                      const Tensor& state_2MH) {
  return in_chunks(s, c, u_TH, state_2MH);
}

LtiConstants constants_of(const LtiSystem& s) {
  const auto split = [](const Tensor& v_HM) {
    return v_HM.defined()
               ? at::stack({at::real(v_HM).t(), at::imag(v_HM).t()}).to(at::kFloat).contiguous()
               : Tensor();
  };
  const auto real = [](const Tensor& v) {
    return v.defined() ? v.to(at::kFloat).contiguous() : Tensor();
  };
  return {split(s.decay_HM), split(s.gain_HM),   split(s.out_HM),   real(s.skip_H),
          split(s.row_HM),   split(s.column_HM), real(s.feedback_H)};
}

Tensor lti_kernel(const LtiConstants& c, const Tensor& u_TH, Tensor& state_2MH) {
  const auto data = [](const Tensor& t) {
    return t.defined() ? t.const_data_ptr<float>() : nullptr;
  };
  const Tensor u = u_TH.contiguous();
  Tensor y = at::empty_like(u);
  kernels::LtiScan scan;
  scan.T = u.size(0), scan.H = u.size(1), scan.M = c.decay.size(1);
  scan.u = data(u);
  scan.decay = data(c.decay);
  scan.gain = data(c.gain);
  scan.out = data(c.out);
  scan.skip = data(c.skip);
  scan.row = data(c.row);
  scan.column = data(c.column);
  scan.feedback = data(c.feedback);
  scan.state = state_2MH.data_ptr<float>();
  scan.y = y.data_ptr<float>();
  kernels::lti_scan(scan);
  return y;
}

DenseLtiConstants constants_of(const DenseLtiSystem& s) {
  const auto last = [](const Tensor& v) { return v.to(at::kFloat).movedim(0, -1).contiguous(); };
  return {last(s.matrix_HNN), last(s.gain_HN), last(s.out_HN), last(s.skip_H)};
}

Tensor lti_kernel(const DenseLtiConstants& c, const Tensor& u_TH, Tensor& state_2MH) {
  const Tensor u = u_TH.contiguous();
  Tensor y = at::empty_like(u);
  kernels::DenseLtiScan scan;
  scan.T = u.size(0), scan.H = u.size(1), scan.N = c.matrix.size(0);
  scan.u = u.const_data_ptr<float>();
  scan.matrix = c.matrix.const_data_ptr<float>();
  scan.gain = c.gain.const_data_ptr<float>();
  scan.out = c.out.const_data_ptr<float>();
  scan.skip = c.skip.const_data_ptr<float>();
  scan.state = state_2MH.data_ptr<float>();
  scan.y = y.data_ptr<float>();
  kernels::dense_lti_scan(scan);
  return y;
}

}  // namespace tessera::ops
