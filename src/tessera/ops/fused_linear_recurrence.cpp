// The linear recurrence on a CPU. For training: forward the kernel token by token, with checkpoints
// of the state; backward by chunks, whose products take less than half of the operations of the
// adjoint recurrence. Without gradients: in chunks, where the rule has that form.
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "tessera/base/threads.h"
#include "tessera/kernels/linear_recurrence_backward.h"
#include "tessera/ops/linear_recurrence.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tokens between checkpoints: fewer of them cost less to write and to keep, as long as the states
// that backward computes between them stay in the second cache level.
constexpr int64_t kInterval = 64;

/// The inputs as contiguous float32, in the order of the function's arguments.
enum Input : size_t { kQ, kK, kV, kDecay, kBeta, kA, kB, kU, kRate, kSkip, kInputs };

const float* data(const Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}
/// Row `b` of a [B, ...] tensor, as a pointer.
float* row(const Tensor& x, int64_t b) {
  return x.defined() ? x.data_ptr<float>() + b * (x.numel() / x.size(0)) : nullptr;
}

Tensor single(const Tensor& x) {
  return x.defined() ? x.to(at::kFloat).contiguous() : x;
}
variable_list inputs(const LinearRecurrence& in, const ValueScales& scales) {
  return {single(in.q_BTHK),       single(in.k_BTHK),    single(in.v_BTHV), single(in.log_decay),
          single(in.beta_BTH),     single(in.a_BTHK),    single(in.b_BTHK), single(in.u_HK),
          single(scales.rate_BTH), single(scales.skip_H)};
}

kernels::LinearRecurrence sequence(const variable_list& in, int64_t b) {
  kernels::LinearRecurrence r;
  r.T = in[kV].size(1), r.H = in[kV].size(2), r.K = in[kQ].size(3), r.V = in[kV].size(3);
  r.G = in[kQ].size(2);
  const auto of = [&](size_t i) { return in[i].defined() ? row(in[i], b) : nullptr; };
  r.q = of(kQ), r.k = of(kK), r.v = of(kV);
  if (in[kDecay].defined()) {
    r.decay = in[kDecay].dim() == 1   ? kernels::DecayPer::head
              : in[kDecay].dim() == 3 ? kernels::DecayPer::token
                                      : kernels::DecayPer::channel;
    r.log_decay = in[kDecay].dim() == 1 ? data(in[kDecay]) : of(kDecay);
  }
  r.beta = of(kBeta), r.a = of(kA), r.b = of(kB);
  r.bonus = data(in[kU]);
  r.rate = of(kRate), r.skip = data(in[kSkip]);
  return r;
}

/// How many heads of those that share q and k sum their gradients one after another: as many as
/// leave every thread something to do.
int64_t heads_summed(int64_t heads, int64_t groups) {
  int64_t most = 1;
  for (int64_t n = 1; n <= heads / groups; ++n)
    if (heads / groups % n == 0 && (n == 1 || heads / n >= thread_count())) most = n;
  return most;
}

struct FusedRecurrence : torch::autograd::Function<FusedRecurrence> {
  using Maybe = std::optional<Tensor>;  // an input that may be undefined

  static variable_list forward(AutogradContext* context,
                               const Tensor& q,
                               const Tensor& k,
                               const Tensor& v,
                               const Maybe& log_decay,
                               const Maybe& beta,
                               const Maybe& a,
                               const Maybe& b,
                               const Maybe& u,
                               const Maybe& rate,
                               const Maybe& skip,
                               const Tensor& state,
                               bool keep) {
    variable_list in{q, k, v};
    for (const Maybe* x : {&log_decay, &beta, &a, &b, &u, &rate, &skip})
      in.push_back(x->value_or(Tensor()));
    const int64_t batch = v.size(0), t = v.size(1), blocks = (t + kInterval - 1) / kInterval;
    Tensor y = at::empty(v.sizes(), v.options()), end = state.clone();
    const Tensor checkpoints =
        keep ? at::empty({batch, blocks, v.size(2), q.size(3), v.size(3)}, v.options()) : Tensor();
    for (int64_t i = 0; i < batch; ++i) {
      auto r = sequence(in, i);
      r.state = row(end, i), r.y = row(y, i);
      r.kept = row(checkpoints, i), r.interval = kInterval;
      kernels::linear_recurrence(r);
    }
    variable_list saved = in;
    saved.push_back(checkpoints);
    context->save_for_backward(saved);
    return {y, end};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const variable_list in(saved.begin(), saved.begin() + kInputs);
    const Tensor& checkpoints = saved[kInputs];
    const Tensor dy = gradients[0].contiguous();
    Tensor dstate = gradients[1].contiguous().clone();
    variable_list out(kInputs);
    for (size_t i = 0; i < kInputs; ++i)
      if (in[i].defined() && i != kU && in[i].dim() > 1) out[i] = at::empty_like(in[i]);
    const int64_t batch = in[kV].size(0), heads = in[kV].size(2), groups = in[kQ].size(2);
    const int64_t summed = heads_summed(heads, groups);
    for (const size_t i : {kQ, kK})
      out[i] = at::empty({batch, in[i].size(1), heads / summed, in[i].size(3)}, in[i].options());
    // what the rows share is summed over them afterwards
    const Tensor du = in[kU].defined()
                          ? at::empty({batch, in[kU].size(0), in[kU].size(1)}, in[kU].options())
                          : Tensor();
    const Tensor dskip =
        in[kSkip].defined() ? at::empty({batch, dy.size(1), heads}, dy.options()) : Tensor();
    for (int64_t i = 0; i < batch; ++i) {
      kernels::LinearRecurrenceGradients g;
      g.interval = kInterval;
      g.summed = summed;
      g.checkpoints = row(checkpoints, i);
      g.dy = row(dy, i);
      g.dstate = row(dstate, i);
      g.dq = row(out[kQ], i), g.dk = row(out[kK], i), g.dv = row(out[kV], i);
      g.dlog_decay = row(out[kDecay], i);
      g.dbeta = row(out[kBeta], i);
      g.da = row(out[kA], i), g.db = row(out[kB], i);
      g.dbonus = row(du, i);
      g.drate = row(out[kRate], i), g.dskip = row(dskip, i);
      kernels::linear_recurrence_backward(sequence(in, i), g);
    }
    if (du.defined()) out[kU] = du.sum(0);
    if (dskip.defined()) out[kSkip] = dskip.sum({0, 1});
    if (groups != heads / summed)
      for (const size_t i : {kQ, kK}) out[i] = out[i].unflatten(2, {groups, -1}).sum(3);
    out.push_back(dstate);
    out.emplace_back();  // of `keep`
    return out;
  }
};

}  // namespace

std::pair<Tensor, Tensor> linear_recurrence_fused(const LinearRecurrence& in,
                                                  const Tensor& state_BHKV,
                                                  const ValueScales& scales) {
  const auto& v = in.v_BTHV;
  const Tensor state =
      state_BHKV.defined()
          ? single(state_BHKV)
          : at::zeros({v.size(0), v.size(2), in.q_BTHK.size(3), v.size(3)}, at::kFloat);
  if (v.size(1) == 0) return {v, state};
  variable_list x = inputs(in, scales);
  // a decay per head that learns is one per token whose gradients are summed
  if (x[kDecay].defined() && x[kDecay].dim() == 1 && x[kDecay].requires_grad())
    x[kDecay] = x[kDecay].expand({v.size(0), v.size(1), v.size(2)}).contiguous();
  const auto maybe = [&](Input i) {
    return x[i].defined() ? std::optional<Tensor>(x[i]) : std::nullopt;
  };
  const variable_list out = FusedRecurrence::apply(
      x[kQ], x[kK], x[kV], maybe(kDecay), maybe(kBeta), maybe(kA), maybe(kB), maybe(kU),
      maybe(kRate), maybe(kSkip), state, /*keep=*/at::GradMode::is_enabled());
  return {out[0].to(v.scalar_type()), out[1]};
}

Tensor linear_recurrence_fused_y(const LinearRecurrence& in, const ValueScales& scales) {
  const auto& v = in.v_BTHV;
  const variable_list x = inputs(in, scales);
  const bool learns =
      at::GradMode::is_enabled() && std::any_of(x.begin(), x.end(), [](const Tensor& one) {
        return one.defined() && one.requires_grad();
      });
  if (learns || v.size(1) == 0) return linear_recurrence_fused(in, {}, scales).first;
  Tensor y = at::empty(v.sizes(), at::kFloat);
  for (int64_t i = 0; i < v.size(0); ++i) {
    auto r = sequence(x, i);
    r.y = row(y, i);
    if (kernels::has_chunked_form(r)) {
      kernels::linear_recurrence_chunked(r);
      continue;
    }
    Tensor state = at::zeros({r.H, r.K, r.V}, at::kFloat);
    r.state = state.data_ptr<float>();
    kernels::linear_recurrence(r);
  }
  return y.to(v.scalar_type());
}

namespace {

bool has_fused_form(const LinearRecurrence& in) {
  return in.v_BTHV.device().is_cpu() && in.v_BTHV.scalar_type() != at::kDouble;
}

}  // namespace

std::pair<Tensor, Tensor> linear_recurrence(const LinearRecurrence& in,
                                            int64_t chunk,
                                            const Tensor& state_BHKV) {
  return has_fused_form(in) ? linear_recurrence_fused(in, state_BHKV)
                            : linear_recurrence_chunked(in, chunk, state_BHKV);
}

Tensor linear_recurrence_y(const LinearRecurrence& in, int64_t chunk) {
  return has_fused_form(in) ? linear_recurrence_fused_y(in)
                            : linear_recurrence_chunked(in, chunk).first;
}

}  // namespace tessera::ops
