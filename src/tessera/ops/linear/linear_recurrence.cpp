#include "tessera/ops/linear/linear_recurrence.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/kernels/linear/linear_recurrence.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

constexpr int64_t kBlock = 16;  // tokens whose decays per channel share one reference

/// q or k with a row for every head.
Tensor for_heads(const Tensor& x_BTGK, int64_t heads) {
  return repeat_each(x_BTGK, heads / x_BTGK.size(2), 2);
}

at::ScalarType type_of(const LinearRecurrence& in) {
  return wide(in.v_BTHV);
}

Tensor initial_state(const LinearRecurrence& in, const Tensor& state) {
  require(in.documents.empty(), "linear_recurrence", "this form takes documents one by one");
  if (state.defined()) return state.to(type_of(in));
  return at::zeros({in.v_BTHV.size(0), in.v_BTHV.size(2), in.q_BTHK.size(3), in.v_BTHV.size(3)},
                   in.v_BTHV.options().dtype(type_of(in)));
}

/// The log decay as [B, T, H, 1 or K] of double, or undefined.
Tensor decay_of(const LinearRecurrence& in) {
  if (!in.log_decay.defined()) return {};
  const Tensor g = in.log_decay.to(at::kDouble);
  if (g.dim() == 1)
    return g.reshape({1, 1, -1, 1})
        .expand({in.v_BTHV.size(0), in.v_BTHV.size(1), in.v_BTHV.size(2), 1});
  return g.dim() == 3 ? g.unsqueeze(-1) : g;
}

/// exp(x) in the working type: x is a difference of sums of log decays, taken in double so that a
/// long sum costs no digits of a short difference.
Tensor exp_of(const Tensor& x, at::ScalarType type) {
  return x.to(type).exp();
}

/// The inputs as [B, H, chunks, C, ...], padded with tokens that change nothing.
struct Chunks {
  int64_t batch, t, heads, length, count;
  at::ScalarType type;
  Tensor q, k, v, beta, a, b;
  Tensor before, until;  // sums of log decays from the chunk's start: without token i, and with it

  Chunks(const LinearRecurrence& in, int64_t chunk)
      : batch(in.v_BTHV.size(0)),
        t(in.v_BTHV.size(1)),
        heads(in.v_BTHV.size(2)),
        length(std::max<int64_t>(1, std::min(chunk, t))),
        count((t + length - 1) / length),
        type(type_of(in)),
        q(fold(for_heads(in.q_BTHK, heads), type)),
        k(fold(for_heads(in.k_BTHK, heads), type)),
        v(fold(in.v_BTHV, type)) {
    if (in.beta_BTH.defined()) beta = fold(in.beta_BTH.unsqueeze(-1), type);
    if (in.a_BTHK.defined()) a = fold(in.a_BTHK, type), b = fold(in.b_BTHK, type);
    if (const Tensor g = decay_of(in); g.defined()) {
      const Tensor folded = fold(g, at::kDouble);
      until = folded.cumsum(3);
      before = until - folded;
    }
  }

  Tensor fold(const Tensor& x_BTHC, at::ScalarType as) const {
    return at::constant_pad_nd(x_BTHC.to(as), {0, 0, 0, 0, 0, count * length - t})
        .reshape({batch, count, length, heads, x_BTHC.size(3)})
        .permute({0, 3, 1, 2, 4});
  }
  Tensor unfold(const Tensor& y_BHcCV) const {
    return y_BHcCV.permute({0, 2, 3, 1, 4})
        .reshape({batch, count * length, heads, y_BHcCV.size(4)})
        .narrow(1, 0, t);
  }

  /// x_i decayed since the chunk's start.
  Tensor from_start(const Tensor& x, const Tensor& sums) const {
    return sums.defined() ? x * exp_of(sums, type) : x;
  }
  /// y_j decayed until the chunk's end.
  Tensor to_end(const Tensor& y) const {
    if (!until.defined()) return y;
    return y * exp_of(until.narrow(3, length - 1, 1) - until, type);
  }

  /// P[i, j] = sum_c x_i[c] y_j[c] exp(sums_i[c] - until_j[c]) for j <= i, or j < i when strict.
  Tensor scores(const Tensor& x, const Tensor& y, const Tensor& sums, bool strict) const {
    if (!until.defined()) return ops::product(x, y.mT()).tril(strict ? -1 : 0);
    if (until.size(4) > 1) return channel_scores(x, y, sums, strict);
    // masked before exp, so that no inf arises
    return ops::product(x, y.mT()) * masked_exp(sums - until.mT(), strict, 0);
  }

 private:
  Tensor masked_exp(const Tensor& difference, bool strict, int64_t trailing) const {
    const int64_t rows = difference.size(difference.dim() - 2 - trailing),
                  columns = difference.size(difference.dim() - 1 - trailing);
    Tensor hidden =
        at::ones({rows, columns}, difference.options().dtype(at::kBool).requires_grad(false))
            .triu(strict ? 0 : 1);
    for (int64_t i = 0; i < trailing; ++i) hidden = hidden.unsqueeze(-1);
    return exp_of(difference.masked_fill(hidden, -std::numeric_limits<double>::infinity()), type);
  }

  /// Blocks of rows: those before a block by a product relative to the block's start, where both
  /// factors' exponents are at most 0; the block itself element by element.
  Tensor channel_scores(const Tensor& x, const Tensor& y, const Tensor& sums, bool strict) const {
    std::vector<Tensor> rows;
    for (int64_t i = 0; i < length; i += kBlock) {
      const int64_t n = std::min(kBlock, length - i);
      const auto block = [&](const Tensor& z) { return z.narrow(3, i, n); };
      const Tensor weights =
          masked_exp(block(sums).unsqueeze(4) - block(until).unsqueeze(3), strict, 1);
      const Tensor inside = at::einsum("bhcik,bhcjk,bhcijk->bhcij", {block(x), block(y), weights});
      std::vector<Tensor> row;
      if (i > 0) {
        const Tensor start = until.narrow(3, i - 1, 1);
        row.push_back(
            ops::product(block(x) * exp_of(block(sums) - start, type),
                         (y.narrow(3, 0, i) * exp_of(start - until.narrow(3, 0, i), type)).mT()));
      }
      row.push_back(inside);
      if (i + n < length)
        row.push_back(at::zeros({batch, heads, count, n, length - i - n}, inside.options()));
      rows.push_back(at::cat(row, -1));
    }
    return at::cat(rows, 3);
  }
};

/// (I + strict)^-1 x, strict strictly lower triangular.
Tensor solve(const Tensor& strict, const Tensor& x) {
  return at::linalg_solve_triangular(strict, x, /*upper=*/false, /*left=*/true,
                                     /*unitriangular=*/true);
}

/// S after a chunk: what decayed, and what its tokens wrote.
Tensor advance(const Chunks& c, const Tensor& state, int64_t i) {
  if (!c.until.defined()) return state;
  return state * exp_of(c.until.select(2, i).narrow(2, c.length - 1, 1), c.type).mT();
}

using Result = std::pair<Tensor, Tensor>;  // y [B, H, chunks, C, V] and the final state

Result chunked_plain(const LinearRecurrence& in, const Chunks& c, Tensor state) {
  const bool bonus = in.u_HK.defined();
  const Tensor& seen = bonus ? c.before : c.until;
  Tensor y = ops::product(c.scores(c.q, c.k, seen, bonus), c.v);
  if (bonus) {
    const Tensor u = in.u_HK.to(c.type).reshape({1, c.heads, 1, 1, -1});
    y = y + (c.q * u * c.k).sum(-1, true) * c.v;
  }
  const Tensor writes = ops::product(c.to_end(c.k).mT(), c.v);
  std::vector<Tensor> before;
  for (int64_t i = 0; i < c.count; ++i) {
    before.push_back(state);
    state = advance(c, state, i) + writes.select(2, i);
  }
  return {y + ops::product(c.from_start(c.q, seen), at::stack(before, 2)), state};
}

/// With errors e_i = v_i - P_i^T k_i the rule is plain with values e and keys beta k, and
/// (I + A) e = v - (k decayed from the start) S_in, A the strict scores of k with beta k.
Result chunked_delta(const LinearRecurrence&, const Chunks& c, Tensor state) {
  const Tensor key = c.beta * c.k;
  const Tensor a = c.scores(c.k, key, c.until, true);
  const Tensor u = solve(a, c.v), w = solve(a, c.from_start(c.k, c.until));
  const Tensor ended = c.to_end(key).mT();
  std::vector<Tensor> before, errors;
  for (int64_t i = 0; i < c.count; ++i) {
    before.push_back(state);
    errors.push_back(u.select(2, i) - ops::product(w.select(2, i), state));
    state = advance(c, state, i) + ops::product(ended.select(2, i), errors.back());
  }
  return {ops::product(c.scores(c.q, key, c.until, false), at::stack(errors, 2)) +
              ops::product(c.from_start(c.q, c.until), at::stack(before, 2)),
          state};
}

/// With z_i = S_{i-1}^T a_i the rule is plain with the further writes b_i z_i^T, and
/// (I - A_ab) z = A_ak v + (a decayed from the start) S_in.
Result chunked_rank_one(const LinearRecurrence&, const Chunks& c, Tensor state) {
  const Tensor ab = c.scores(c.a, c.b, c.before, true), ak = c.scores(c.a, c.k, c.before, true);
  const Tensor u = solve(-ab, ops::product(ak, c.v)), w = solve(-ab, c.from_start(c.a, c.before));
  const Tensor writes = ops::product(c.to_end(c.k).mT(), c.v), ended = c.to_end(c.b).mT();
  std::vector<Tensor> before, along;
  for (int64_t i = 0; i < c.count; ++i) {
    before.push_back(state);
    along.push_back(u.select(2, i) + ops::product(w.select(2, i), state));
    state =
        advance(c, state, i) + writes.select(2, i) + ops::product(ended.select(2, i), along.back());
  }
  return {ops::product(c.scores(c.q, c.k, c.until, false), c.v) +
              ops::product(c.scores(c.q, c.b, c.until, false), at::stack(along, 2)) +
              ops::product(c.from_start(c.q, c.until), at::stack(before, 2)),
          state};
}

template <class F>
Tensor in_double(const Tensor& x, const F& f) {
  const Tensor input = x.contiguous();
  Tensor y = at::empty_like(input);
  const auto* from = input.const_data_ptr<float>();
  auto* to = y.data_ptr<float>();
  for (int64_t i = 0; i < input.numel(); ++i)
    to[i] = static_cast<float>(f(static_cast<double>(from[i])));
  return y;
}

}  // namespace

std::pair<Tensor, Tensor> linear_recurrence_chunked(const LinearRecurrence& in,
                                                    int64_t chunk,
                                                    const Tensor& state_BHKV) {
  const Tensor state = initial_state(in, state_BHKV);
  if (in.v_BTHV.size(1) == 0) return {in.v_BTHV, state};
  const Chunks c(in, chunk);
  const auto form = in.beta_BTH.defined() ? chunked_delta
                    : in.a_BTHK.defined() ? chunked_rank_one
                                          : chunked_plain;
  const auto [y, end] = form(in, c, state);
  return {c.unfold(y).to(in.v_BTHV.scalar_type()), end};
}

std::pair<Tensor, Tensor> linear_recurrence_recurrent(const LinearRecurrence& in,
                                                      const Tensor& state_BHKV) {
  const auto type = type_of(in);
  Tensor state = initial_state(in, state_BHKV);
  const Tensor g = decay_of(in), decay = g.defined() ? exp_of(g, type) : g;
  const auto at_token = [&](const Tensor& x, int64_t t) { return x.select(1, t).to(type); };
  const auto column = [&](const Tensor& x, int64_t t) { return at_token(x, t).unsqueeze(-1); };
  const int64_t heads = in.v_BTHV.size(2);
  const Tensor q_BTHK = for_heads(in.q_BTHK, heads), k_BTHK = for_heads(in.k_BTHK, heads);
  std::vector<Tensor> ys;
  for (int64_t t = 0; t < in.v_BTHV.size(1); ++t) {
    const Tensor q = column(q_BTHK, t), k = column(k_BTHK, t);  // [B, H, K, 1]
    Tensor v = at_token(in.v_BTHV, t).unsqueeze(-2);            // [B, H, 1, V]
    const Tensor old = state;
    if (decay.defined()) state = state * column(decay, t);
    if (in.beta_BTH.defined()) {
      v = column(in.beta_BTH, t).unsqueeze(-1) * (v - (state * k).sum(-2, true));
    } else if (in.a_BTHK.defined()) {
      state = state + column(in.b_BTHK, t) * (old * column(in.a_BTHK, t)).sum(-2, true);
    }
    state = state + k * v;
    const Tensor read = in.u_HK.defined() ? old + in.u_HK.to(type).unsqueeze(-1) * k * v : state;
    ys.push_back((read * q).sum(-2));
  }
  if (ys.empty()) return {in.v_BTHV, state};
  return {at::stack(ys, 1).to(in.v_BTHV.scalar_type()), state};
}

Tensor linear_recurrence_scan(const LinearRecurrence& in, Tensor& state_HKV) {
  std::vector<Tensor> held;  // contiguous copies live as long as the call
  const auto data = [&](const Tensor& x) -> const float* {
    if (!x.defined()) return nullptr;
    held.push_back(x.to(at::kFloat).contiguous());
    return held.back().const_data_ptr<float>();
  };
  Tensor y = at::empty(in.v_BTHV.sizes(), in.v_BTHV.options());
  kernels::LinearRecurrence r;
  r.T = y.size(1), r.H = y.size(2), r.K = in.q_BTHK.size(3), r.V = y.size(3);
  r.G = in.q_BTHK.size(2);
  r.q = data(in.q_BTHK);
  r.k = data(in.k_BTHK);
  r.v = data(in.v_BTHV);
  if (in.log_decay.defined()) {
    r.decay = in.log_decay.dim() == 1   ? kernels::DecayPer::head
              : in.log_decay.dim() == 3 ? kernels::DecayPer::token
                                        : kernels::DecayPer::channel;
    r.log_decay = data(in.log_decay);
  }
  r.beta = data(in.beta_BTH);
  r.a = data(in.a_BTHK);
  r.b = data(in.b_BTHK);
  r.bonus = data(in.u_HK);
  r.state = state_HKV.data_ptr<float>();
  r.y = y.data_ptr<float>();
  kernels::linear_recurrence(r);
  return y;
}

Tensor linear_recurrence_whole(const LinearRecurrence& in) {
  if (!in.documents.empty()) {
    std::vector<Tensor> out;
    for (const LinearRecurrence& one : by_document(in)) out.push_back(linear_recurrence_whole(one));
    return at::cat(out, 1);
  }
  if (kernel_serves(Op::linear_recurrence_whole, in.v_BTHV) && in.v_BTHV.size(0) == 1) {
    // one pass writes the state, a second one, with keys of zero, reads it
    Tensor state = at::zeros({in.v_BTHV.size(2), in.q_BTHK.size(3), in.v_BTHV.size(3)});
    linear_recurrence_scan({in.q_BTHK, in.k_BTHK, in.v_BTHV}, state);
    return linear_recurrence_scan({in.q_BTHK, at::zeros_like(in.k_BTHK), in.v_BTHV}, state);
  }
  const auto type = type_of(in);
  const auto by_head = [&](const Tensor& x) {
    return for_heads(x, in.v_BTHV.size(2)).to(type).transpose(1, 2);
  };
  const Tensor state = ops::product(by_head(in.k_BTHK).mT(), by_head(in.v_BTHV));
  return ops::product(by_head(in.q_BTHK), state).transpose(1, 2).to(in.v_BTHV.scalar_type());
}

Tensor row_dots(const Tensor& x, const Tensor& w) {
  const Tensor products = x * spread(w, x);
  if (!kernel_serves(Op::row_dots, products)) return products.sum(-1);
  const Tensor terms = products.contiguous();
  const int64_t width = terms.size(-1);
  Tensor y =
      at::empty(terms.sizes().slice(0, static_cast<size_t>(terms.dim() - 1)), terms.options());
  const auto* from = terms.const_data_ptr<float>();
  auto* to = y.data_ptr<float>();
  for (int64_t row = 0; row < y.numel(); ++row) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += static_cast<double>(from[row * width + c]);
    to[row] = static_cast<float>(sum);
  }
  return y;
}

Tensor log_sigmoid(const Tensor& x) {
  if (!kernel_serves(Op::log_sigmoid, x)) return at::log_sigmoid(x);
  return in_double(x,
                   [](double v) { return std::min(v, 0.0) - std::log1p(std::exp(-std::abs(v))); });
}

Tensor log_sigmoid_above(const Tensor& x, const Tensor& lb_C) {
  if (!lb_C.defined()) return ops::log_sigmoid(x);
  const Tensor lb = spread(lb_C, x), gate = lb + (1 - lb) * activate(x, Activation::sigmoid);
  if (!kernel_serves(Op::log_sigmoid, x)) return at::log(gate);
  return in_double(gate, [](double v) { return std::log(v); });
}

Tensor minus_exp(const Tensor& x) {
  if (!kernel_serves(Op::minus_exp, x)) return -at::exp(x);
  return in_double(x, [](double v) { return -std::exp(v); });
}

}  // namespace tessera::ops
