#include "tessera/ops/scan/mamba2.h"

#include <limits>
#include <vector>

#include "tessera/kernels/scan/mamba2.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

/// [.., G, N] -> [.., H, N]: every head its group's row.
Tensor for_heads(const Tensor& t, int64_t heads) {
  return repeat_each(t, heads / t.size(-2), -2);
}

Tensor initial_state(const Ssd& in, const Tensor& state) {
  require(in.documents.empty(), "ssd", "this form takes documents one by one");
  const auto type = wide(in.x_BTHP);
  if (state.defined()) return state.to(type);
  return at::zeros({in.x_BTHP.size(0), in.x_BTHP.size(2), in.x_BTHP.size(3), in.b_BTGN.size(3)},
                   in.x_BTHP.options().dtype(type));
}

}  // namespace

std::pair<Tensor, Tensor> ssd_chunked(const Ssd& in, int64_t chunk, const Tensor& state_BHPN) {
  const auto type = wide(in.x_BTHP);
  const int64_t batch = in.x_BTHP.size(0), t = in.x_BTHP.size(1), h = in.x_BTHP.size(2),
                p = in.x_BTHP.size(3);
  const int64_t n = in.b_BTGN.size(3), q = std::max<int64_t>(1, std::min(chunk, t)),
                chunks = (t + q - 1) / q;
  Tensor state = initial_state(in, state_BHPN);
  if (t == 0) return {in.x_BTHP, state};
  // padding with dt = 0 leaves the state alone
  const auto fold = [&](const Tensor& v, std::vector<int64_t> tail) {
    std::vector<int64_t> padding(2 * static_cast<size_t>(v.dim() - 2) + 2, 0);
    padding.back() = chunks * q - t;
    tail.insert(tail.begin(), {batch, chunks, q});
    return at::constant_pad_nd(v.to(type), padding).reshape(tail);
  };
  const Tensor dt = fold(in.dt_BTH, {h});
  const Tensor x_dt = fold(in.x_BTHP, {h, p}) * dt.unsqueeze(-1);
  const Tensor b = fold(for_heads(in.b_BTGN, h), {h, n}), c = fold(for_heads(in.c_BTGN, h), {h, n});
  const Tensor s =
      (dt * in.a_H.to(type)).cumsum(2);  // [B, c, q, H]: log of the decay since the chunk's start

  // inside a chunk: (L o C B^T) (dt x), L_ij = exp(s_i - s_j) for j <= i; masked before exp, so
  // that no inf arises
  const Tensor above = at::ones({q, q}, at::TensorOptions().dtype(at::kBool).device(s.device()))
                           .triu(1)
                           .unsqueeze(-1);
  const Tensor l = (s.unsqueeze(3) - s.unsqueeze(2))
                       .masked_fill(above, -std::numeric_limits<double>::infinity())
                       .exp();
  const Tensor scores = ops::einsum("bcihn,bcjhn->bcijh", c, b) * l;
  Tensor y = ops::einsum("bcijh,bcjhp->bcihp", scores, x_dt);

  // across chunks: each chunk's contribution to the state, then the recurrence over chunks
  const Tensor end = s.select(2, q - 1);  // [B, c, H]
  const Tensor gain =
      ops::einsum("bcjhn,bcjhp->bchpn", b * (end.unsqueeze(2) - s).exp().unsqueeze(-1), x_dt);
  std::vector<Tensor> before;
  for (int64_t i = 0; i < chunks; ++i) {
    before.push_back(state);
    state = state * end.select(1, i).exp().unsqueeze(-1).unsqueeze(-1) + gain.select(1, i);
  }
  y = y + ops::einsum("bcihn,bchpn->bcihp", c * s.exp().unsqueeze(-1), at::stack(before, 1));
  y = y.reshape({batch, chunks * q, h, p}).narrow(1, 0, t);
  if (in.d_H.defined()) y = y + in.d_H.to(type).unsqueeze(-1) * in.x_BTHP.to(type);
  return {y.to(in.x_BTHP.scalar_type()), state};
}

namespace {

bool has_fused_form(const Ssd& in) {
  return on_cpu(form_of(Op::ssd, in.x_BTHP));
}

// A linear recurrence: C asks, B is the key, dt x the value, dt A the logarithm of the decay.
LinearRecurrence recurrence_of(const Ssd& in) {
  const auto type = wide(in.x_BTHP);
  return {.q_BTHK = in.c_BTGN.to(type),
          .k_BTHK = in.b_BTGN.to(type),
          .v_BTHV = in.x_BTHP.to(type),
          .log_decay = in.dt_BTH.to(type) * spread(in.a_H.to(type), in.dt_BTH),
          .documents = in.documents};
}

}  // namespace

std::pair<Tensor, Tensor> ssd(const Ssd& in, int64_t chunk, const Tensor& state_BHPN) {
  if (!has_fused_form(in)) return ssd_chunked(in, chunk, state_BHPN);
  const auto type = wide(in.x_BTHP);
  const Tensor before = state_BHPN.defined() ? state_BHPN.to(type).mT() : Tensor();
  const auto [y, state] =
      linear_recurrence_fused(recurrence_of(in), before, {in.dt_BTH.to(type), in.d_H});
  return {y.to(in.x_BTHP.scalar_type()), state.mT()};
}

Tensor ssd_y(const Ssd& in, int64_t chunk) {
  if (has_fused_form(in)) {
    const auto type = wide(in.x_BTHP);
    return linear_recurrence_fused_y(recurrence_of(in), {in.dt_BTH.to(type), in.d_H})
        .to(in.x_BTHP.scalar_type());
  }
  if (in.documents.empty()) return ssd_chunked(in, chunk).first;
  const auto pieces = [&](const Tensor& x) { return x.split_with_sizes(in.documents, 1); };
  const auto x = pieces(in.x_BTHP), dt = pieces(in.dt_BTH), b = pieces(in.b_BTGN),
             c = pieces(in.c_BTGN);
  std::vector<Tensor> out;
  for (size_t i = 0; i < x.size(); ++i)
    out.push_back(ssd_chunked({x[i], dt[i], in.a_H, b[i], c[i], in.d_H}, chunk).first);
  return at::cat(out, 1);
}

std::pair<Tensor, Tensor> ssd_recurrent(const Ssd& in, const Tensor& state_BHPN) {
  const auto type = wide(in.x_BTHP);
  const int64_t t = in.x_BTHP.size(1), h = in.x_BTHP.size(2);
  Tensor state = initial_state(in, state_BHPN);
  if (t == 0) return {in.x_BTHP, state};
  const Tensor x = in.x_BTHP.to(type), dt = in.dt_BTH.to(type);
  const Tensor b = for_heads(in.b_BTGN.to(type), h), c = for_heads(in.c_BTGN.to(type), h);
  const Tensor a = (dt * in.a_H.to(type)).exp();
  std::vector<Tensor> ys;
  for (int64_t i = 0; i < t; ++i) {
    const Tensor xi = x.select(1, i) * dt.select(1, i).unsqueeze(-1);  // [B, H, P]
    state = state * a.select(1, i).unsqueeze(-1).unsqueeze(-1) +
            xi.unsqueeze(-1) * b.select(1, i).unsqueeze(-2);
    ys.push_back((state * c.select(1, i).unsqueeze(-2)).sum(-1));
  }
  Tensor y = at::stack(ys, 1);
  if (in.d_H.defined()) y = y + in.d_H.to(type).unsqueeze(-1) * x;
  return {y.to(in.x_BTHP.scalar_type()), state};
}

Tensor ssd_scan(const Ssd& in, Tensor& state_HPN) {
  const Tensor x = in.x_BTHP.contiguous(), dt = in.dt_BTH.contiguous(), a = in.a_H.contiguous();
  const Tensor b = in.b_BTGN.contiguous(), c = in.c_BTGN.contiguous();
  const Tensor d = in.d_H.defined() ? in.d_H.contiguous() : Tensor();
  Tensor y = at::empty_like(x);
  kernels::SsdScan scan;
  scan.T = x.size(1), scan.H = x.size(2), scan.P = x.size(3), scan.G = b.size(2),
  scan.N = b.size(3);
  scan.x = x.const_data_ptr<float>();
  scan.dt = dt.const_data_ptr<float>();
  scan.A = a.const_data_ptr<float>();
  scan.B = b.const_data_ptr<float>();
  scan.C = c.const_data_ptr<float>();
  scan.D = d.defined() ? d.const_data_ptr<float>() : nullptr;
  scan.state = state_HPN.data_ptr<float>();
  scan.y = y.data_ptr<float>();
  kernels::ssd_scan(scan);
  return y;
}

}  // namespace tessera::ops
