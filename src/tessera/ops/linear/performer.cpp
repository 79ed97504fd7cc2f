#include "tessera/ops/linear/performer.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/kernels/linear/performer.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/weights/product.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Whether features are exponentials, of which the largest is taken off.
bool exponential(const Favor& in) {
  return in.kernel == FavorKernel::softmax || in.kernel == FavorKernel::softmax_hyperbolic;
}

Tensor scaled(const Tensor& x, const Favor& in) {
  const Tensor wide_x = x.to(wide(x));
  return in.kernel != FavorKernel::relu ? wide_x * std::pow(static_cast<double>(x.size(-1)), -0.25)
                                        : wide_x;
}

/// w_r . y for every row of scaled y.
Tensor scores(const Tensor& y, const Favor& in) {
  const Tensor w = in.w_MD.to(y.device(), y.scalar_type()).contiguous();
  const Tensor s = linear(y, Weight::dense("directions", w), nullptr, {.type = in.products});
  return in.kernel == FavorKernel::softmax_hyperbolic ? at::cat({s, -s}, -1) : s;
}

/// The largest exponent of a key's factor: e^60 times the values of many keys stay within float32,
/// where one key beyond its range would make all later sums nothing.
constexpr double kMostKeyExponent = 60;

/// Features that are no exponentials, of scaled y and its scores. The factor exp(|q|^2 / 2) of a
/// query is above and below the fraction, so that keys alone have it.
Tensor plain_features(const Tensor& y, const Tensor& s, const Favor& in, bool of_keys) {
  if (in.kernel == FavorKernel::relu) return at::relu(s);
  const Tensor waves = at::cat({s.sin(), s.cos()}, -1);
  return of_keys ? waves * spread((y.square().sum(-1, true) / 2).clamp_max(kMostKeyExponent).exp(), waves) : waves;
}

/// The factor on products of features.
double product_factor(const Favor& in, int64_t features) {
  return exponential(in) ? 1 / static_cast<double>(features) : 1;
}

Tensor with_one(const Tensor& v) {
  auto sizes = v.sizes().vec();
  sizes.back() = 1;
  return at::cat({v, at::ones(sizes, v.options())}, -1);
}

/// num / den of [.., V + 1] sums, with the official guard of a vanishing denominator.
Tensor normalised(const Tensor& sums, double eps) {
  const int64_t v = sums.size(-1) - 1;
  Tensor divisor = sums.narrow(-1, v, 1);
  divisor = divisor + 2 * eps * divisor.abs().le(eps).to(divisor.scalar_type());
  const Tensor empty = divisor.eq(0);
  const Tensor above = sums.narrow(-1, 0, v);
  return (above / spread(divisor.masked_fill(empty, 1), above)).masked_fill(empty, 0);
}

/// Keys before their maximum is taken off: ln of a feature, and the largest score of each row.
struct Keys {
  Tensor log_BTHM, largest_BTH;  // where none is taken off: the features themselves, and zeros
};
Keys keys_of(const Favor& in) {
  const Tensor y = scaled(in.k_BTHD, in), s = scores(y, in);
  if (!exponential(in)) return {plain_features(y, s, in, true), at::zeros_like(s.select(-1, 0))};
  return {s - spread(y.square().sum(-1, true) / 2, s), s.amax(-1)};
}

}  // namespace

namespace {

/// x <- H x / sqrt(d), d numbers, a power of two.
void hadamard(double* x, int64_t d) {
  for (int64_t half = 1; half < d; half *= 2)
    for (int64_t begin = 0; begin < d; begin += 2 * half)
      for (int64_t i = begin; i < begin + half; ++i) {
        const double a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
  for (int64_t i = 0; i < d; ++i) x[i] /= std::sqrt(static_cast<double>(d));
}

/// Row r of the product of three is D_3 H D_2 H D_1 H e_r.
Tensor hadamard_directions(const RandomKey& key, int64_t m, int64_t d) {
  require((d & (d - 1)) == 0, "performer", "{} channels of hadamard directions", d);
  const RandomKey signs = key.fold("signs");
  Tensor w = at::zeros({m, d}, at::kDouble);
  for (int64_t r = 0; r < m; ++r) {
    double* row = w.data_ptr<double>() + r * d;
    row[r % d] = std::sqrt(static_cast<double>(d));
    for (int64_t factor = 0; factor < 3; ++factor) {
      hadamard(row, d);
      for (int64_t c = 0; c < d; ++c)
        if (signs.bits(static_cast<uint64_t>((r / d * 3 + factor) * d + c)) % 2 == 0)
          row[c] = -row[c];
    }
  }
  return w;
}

}  // namespace

Tensor favor_directions(const RandomKey& key, int64_t m, int64_t d, FavorRows rows) {
  if (rows == FavorRows::hadamard) return hadamard_directions(key, m, d);
  Tensor w = at::empty({m, d}, at::kDouble);
  auto* out = w.data_ptr<double>();
  const RandomKey values = key.fold("rows"), norms = key.fold("norms");
  for (int64_t i = 0; i < m * d; ++i) out[i] = values.normal(static_cast<uint64_t>(i));
  if (rows == FavorRows::gaussian) return w;
  const auto dot = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) sum += out[a * d + c] * out[b * d + c];
    return sum;
  };
  for (int64_t r = 0; r < m; ++r) {
    // Gram-Schmidt against the rows of its block, twice: the second round removes the rounding
    for (int round = 0; round < 2; ++round)
      for (int64_t before = r - r % d; before < r; ++before) {
        const double share = dot(r, before);  // unit rows
        for (int64_t c = 0; c < d; ++c) out[r * d + c] -= share * out[before * d + c];
      }
    const double length = std::sqrt(dot(r, r));
    for (int64_t c = 0; c < d; ++c) out[r * d + c] /= length;
  }
  for (int64_t r = 0; r < m; ++r) {
    double square = static_cast<double>(d);
    if (rows == FavorRows::orthogonal) {
      square = 0;
      for (int64_t c = 0; c < d; ++c)
        square += std::pow(norms.normal(static_cast<uint64_t>(r * d + c)), 2);
    }
    for (int64_t c = 0; c < d; ++c) out[r * d + c] *= std::sqrt(square);
  }
  return w;
}

Tensor favor_query_features(const Tensor& x_BTHD, const Favor& how) {
  const Tensor y = scaled(x_BTHD, how), s = scores(y, how);
  if (!exponential(how)) return plain_features(y, s, how, false) + how.eps;
  const Tensor shift = y.square().sum(-1, true) / 2 + s.amax(-1, true);
  return ((s - spread(shift, s)).exp() + how.eps) / std::sqrt(static_cast<double>(s.size(-1)));
}

Tensor favor_bidirectional(const Favor& in) {
  const Tensor phi_q = favor_query_features(in.q_BTHD, in);
  const Keys keys = keys_of(in);
  // one maximum per sequence and head
  const Tensor top = keys.largest_BTH.amax(1, true).unsqueeze(-1);
  const Tensor features =
      exponential(in) ? (keys.log_BTHM - spread(top, keys.log_BTHM)).exp() : keys.log_BTHM;
  const Tensor phi_k = (features + in.eps) * std::sqrt(product_factor(in, features.size(-1)));
  const Tensor v = with_one(in.v_BTHV.to(phi_q.scalar_type()));
  const Tensor sums = ops::einsum("bthm,bthu->bhmu", phi_k, v);
  return normalised(ops::einsum("bthm,bhmu->bthu", phi_q, sums), in.eps)
      .to(in.q_BTHD.scalar_type());
}

std::pair<Tensor, FavorState> favor_chunked(const Favor& in,
                                            int64_t chunk,
                                            const FavorState& state) {
  const int64_t t = in.q_BTHD.size(1);
  const Tensor phi_q = favor_query_features(in.q_BTHD, in);
  const Tensor total_q =
      ordered_sum(phi_q, {-1}, true) * in.eps;  // meets the eps of every key's features
  const Keys keys = keys_of(in);
  const Tensor v = with_one(in.v_BTHV.to(phi_q.scalar_type()));
  const double factor = std::sqrt(product_factor(in, phi_q.size(-1)));

  const int64_t b = v.size(0), h = v.size(2), u = v.size(3), m = phi_q.size(-1);
  Tensor sums = state.sums_BHMU.defined() ? state.sums_BHMU : at::zeros({b, h, m, u}, v.options());
  Tensor values = state.values_BHU.defined() ? state.values_BHU : at::zeros({b, h, u}, v.options());
  Tensor top = state.maximum_BH.defined() ? state.maximum_BH : at::zeros({b, h}, v.options());
  if (exponential(in)) top = top.masked_fill(values.select(-1, u - 1).eq(0), -kInfinity);

  // cut once: the gradients of many narrow()s would each be as long as the sequence
  const auto chunks = [&](const Tensor& x) { return x.split(chunk, 1); };
  const auto q_chunks = chunks(phi_q), flat_chunks = chunks(total_q), v_chunks = chunks(v),
             log_chunks = chunks(keys.log_BTHM), largest_chunks = chunks(keys.largest_BTH);
  std::vector<Tensor> out;
  for (size_t c = 0; c < (t == 0 ? 0 : q_chunks.size()); ++c) {
    const Tensor &q = q_chunks[c], &flat = flat_chunks[c], &rows = v_chunks[c];
    const int64_t n = q.size(1);
    // the largest score of the keys up to each token
    const Tensor upto = at::maximum(std::get<0>(largest_chunks[c].cummax(1)), top.unsqueeze(1));
    const Tensor e = exponential(in)
                         ? (log_chunks[c] - spread(upto.unsqueeze(-1), log_chunks[c])).exp()
                         : log_chunks[c];
    // inside the chunk: each key's feature scaled from its own maximum to the query's
    const Tensor future =
        at::ones({n, n}, at::TensorOptions().dtype(at::kBool).device(v.device())).triu(1);
    const Tensor by_head = upto.transpose(1, 2);  // [B, H, n]
    const std::vector<int64_t> pairs{b, h, n, n};
    const Tensor rescale =
        (spread(by_head.unsqueeze(2), pairs) - spread(by_head.unsqueeze(3), pairs))
            .masked_fill(future, -kInfinity)
            .exp();  // [B, H, query, key]
    const Tensor products =
        ops::einsum("bihm,bjhm->bhij", q, e) * rescale +
        spread(flat.squeeze(-1).transpose(1, 2).unsqueeze(-1), pairs).masked_fill(future, 0);
    const Tensor inside = ops::einsum("bhij,bjhu->bihu", products, rows);
    // what came before it
    const Tensor fade = (top.unsqueeze(1) - upto).exp().unsqueeze(-1);
    const Tensor held = ops::einsum("bihm,bhmu->bihu", q, sums);
    const Tensor before =
        held * spread(fade, held) + spread(flat, held) * spread(values.unsqueeze(1), held);
    out.push_back(normalised((inside + before) * factor, in.eps));
    // hand over to the next chunk
    const Tensor last = upto.select(1, n - 1);
    const Tensor to_last = (upto - spread(last.unsqueeze(1), upto)).exp().unsqueeze(-1);
    sums = sums * spread((top - last).exp().unsqueeze(-1).unsqueeze(-1), sums) +
           ops::einsum("bjhm,bjhu->bhmu", e * spread(to_last, e), rows);
    values = values + ordered_sum(rows, {1});
    top = last;
  }
  const Tensor y = out.empty() ? in.v_BTHV : at::cat(out, 1).to(in.q_BTHD.scalar_type());
  return {y, {sums, values, top}};
}

Tensor favor_scan(const Favor& in, bool causal, const FavorState& state) {
  const Tensor q = scaled(in.q_BTHD, in).contiguous(), k = scaled(in.k_BTHD, in).contiguous(),
               v = in.v_BTHV.contiguous();
  Tensor q_scores = scores(q, in).contiguous(), k_scores = scores(k, in).contiguous();
  const bool waves = in.kernel == FavorKernel::trigonometric;
  if (waves) {
    q_scores = plain_features(q, q_scores, in, false).contiguous();
    k_scores = plain_features(k, k_scores, in, true).contiguous();
  }
  Tensor out = at::empty_like(v);
  kernels::FavorScan f;
  f.T = q.size(1), f.H = q.size(2), f.K = q.size(3), f.M = q_scores.size(3), f.V = v.size(3);
  f.q = q.const_data_ptr<float>();
  f.k = k.const_data_ptr<float>();
  f.v = v.const_data_ptr<float>();
  f.q_scores = q_scores.const_data_ptr<float>();
  f.k_scores = k_scores.const_data_ptr<float>();
  f.exponential = exponential(in);
  f.rectified = !waves;
  f.causal = causal;
  f.eps = static_cast<float>(in.eps);
  f.factor = static_cast<float>(product_factor(in, f.M));
  f.sums = state.sums_BHMU.data_ptr<float>();
  f.values = state.values_BHU.data_ptr<float>();
  f.maximum = state.maximum_BH.data_ptr<float>();
  f.out = out.data_ptr<float>();
  kernels::favor_scan(f);
  return out;
}

}  // namespace tessera::ops
