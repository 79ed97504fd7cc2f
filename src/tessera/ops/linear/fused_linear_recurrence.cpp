// The linear recurrence on a CPU. For training: forward the kernel token by token, with checkpoints
// of the state; backward by chunks, whose products take less than half of the operations of the
// adjoint recurrence. Without gradients: in chunks, where the rule has that form.
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "tessera/kernels/linear/linear_recurrence_backward.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"

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

/// Tokens [first, first + length) of all B T, and where its checkpoints begin.
struct Sequence {
  int64_t first = 0, length = 0, checkpoint = 0;
};

/// Rows of a batch, or documents.
std::vector<Sequence> sequences_of(const Tensor& v_BTHV, const Lengths& documents) {
  const Lengths lengths =
      documents.empty() ? Lengths(static_cast<size_t>(v_BTHV.size(0)), v_BTHV.size(1)) : documents;
  std::vector<Sequence> out;
  Sequence next;
  for (const int64_t length : lengths) {
    if (length == 0) continue;
    next.length = length;
    out.push_back(next);
    next.first += length;
    next.checkpoint += (length + kInterval - 1) / kInterval;
  }
  require(next.first == v_BTHV.size(0) * v_BTHV.size(1), "linear_recurrence",
          "documents of {} tokens; expected {}", next.first, v_BTHV.size(0) * v_BTHV.size(1));
  return out;
}

/// Token `t` of a [B, T, ...] tensor, and entry `i` of an [n, ...] one, as pointers.
float* token(const Tensor& x, int64_t t) {
  return x.defined() ? x.data_ptr<float>() + t * (x.numel() / (x.size(0) * x.size(1))) : nullptr;
}
float* entry(const Tensor& x, int64_t i) {
  return x.defined() ? x.data_ptr<float>() + i * (x.numel() / x.size(0)) : nullptr;
}

Tensor single(const Tensor& x) {
  return x.defined() ? x.to(at::kFloat).contiguous() : x;
}
variable_list inputs(const LinearRecurrence& in, const ValueScales& scales) {
  return {single(in.q_BTHK),       single(in.k_BTHK),    single(in.v_BTHV), single(in.log_decay),
          single(in.beta_BTH),     single(in.a_BTHK),    single(in.b_BTHK), single(in.u_HK),
          single(scales.rate_BTH), single(scales.skip_H)};
}

kernels::LinearRecurrence recurrence(const variable_list& in, const Sequence& s) {
  kernels::LinearRecurrence r;
  r.T = s.length, r.H = in[kV].size(2), r.K = in[kQ].size(3), r.V = in[kV].size(3);
  r.G = in[kQ].size(2);
  const auto of = [&](Input i) { return token(in[i], s.first); };
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
/// leave eight threads something to do. No matter how many there are: the order of a sum follows
/// from the shapes.
int64_t heads_summed(int64_t heads, int64_t groups) {
  constexpr int64_t kTasks = 8;
  int64_t most = 1;
  for (int64_t n = 1; n <= heads / groups; ++n)
    if (heads / groups % n == 0 && heads / n >= kTasks) most = n;
  return most;
}

/// y, and of rows of a batch the final states.
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
                               const Maybe& state,
                               const Lengths& documents,
                               bool keep) {
    variable_list in{q, k, v};
    for (const Maybe* x : {&log_decay, &beta, &a, &b, &u, &rate, &skip})
      in.push_back(x->value_or(Tensor()));
    const std::vector<Sequence> sequences = sequences_of(v, documents);
    const int64_t blocks =
        sequences.back().checkpoint + (sequences.back().length + kInterval - 1) / kInterval;
    const std::vector<int64_t> one{v.size(2), q.size(3), v.size(3)};
    Tensor y = at::empty(v.sizes(), v.options());
    // documents begin with zeros and leave nothing: one state serves them all
    Tensor end = state ? state->clone() : at::empty({1, one[0], one[1], one[2]}, v.options());
    const Tensor checkpoints =
        keep ? at::empty({blocks, one[0], one[1], one[2]}, v.options()) : Tensor();
    for (size_t i = 0; i < sequences.size(); ++i) {
      auto r = recurrence(in, sequences[i]);
      if (!state) end.zero_();
      r.state = entry(end, state ? static_cast<int64_t>(i) : 0);
      r.y = token(y, sequences[i].first);
      r.kept = keep ? entry(checkpoints, sequences[i].checkpoint) : nullptr;
      r.interval = kInterval;
      kernels::linear_recurrence(r);
    }
    variable_list saved = in;
    saved.push_back(checkpoints);
    context->save_for_backward(saved);
    context->saved_data["documents"] = documents;
    context->saved_data["state"] = state.has_value();
    return {y, end};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const variable_list in(saved.begin(), saved.begin() + kInputs);
    const Tensor& checkpoints = saved[kInputs];
    const bool has_state = context->saved_data["state"].toBool();
    const std::vector<Sequence> sequences =
        sequences_of(in[kV], context->saved_data["documents"].toIntVector());
    const Tensor dy = gradients[0].contiguous();
    Tensor dstate = gradients[1].contiguous().clone();
    variable_list out(kInputs);
    for (size_t i = 0; i < kInputs; ++i)
      if (in[i].defined() && i != kU && in[i].dim() > 1) out[i] = at::empty_like(in[i]);
    const int64_t batch = in[kV].size(0), heads = in[kV].size(2), groups = in[kQ].size(2);
    const int64_t summed = heads_summed(heads, groups);
    for (const size_t i : {kQ, kK})
      out[i] = at::empty({batch, in[i].size(1), heads / summed, in[i].size(3)}, in[i].options());
    // what the sequences share is summed over them afterwards
    const Tensor du =
        in[kU].defined()
            ? at::empty({static_cast<int64_t>(sequences.size()), in[kU].size(0), in[kU].size(1)},
                        in[kU].options())
            : Tensor();
    const Tensor dskip =
        in[kSkip].defined() ? at::empty({batch, dy.size(1), heads}, dy.options()) : Tensor();
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& s = sequences[i];
      const auto of = [&](const Tensor& x) { return token(x, s.first); };
      if (!has_state) dstate.zero_();
      kernels::LinearRecurrenceGradients g;
      g.interval = kInterval;
      g.summed = summed;
      g.checkpoints = entry(checkpoints, s.checkpoint);
      g.dy = of(dy);
      g.dstate = entry(dstate, has_state ? static_cast<int64_t>(i) : 0);
      g.dq = of(out[kQ]), g.dk = of(out[kK]), g.dv = of(out[kV]);
      g.dlog_decay = of(out[kDecay]);
      g.dbeta = of(out[kBeta]);
      g.da = of(out[kA]), g.db = of(out[kB]);
      g.dbonus = entry(du, static_cast<int64_t>(i));
      g.drate = of(out[kRate]), g.dskip = of(dskip);
      kernels::linear_recurrence_backward(recurrence(in, s), g);
    }
    if (du.defined()) out[kU] = ordered_sum(du, {0});
    if (dskip.defined()) out[kSkip] = ordered_sum(dskip, {0, 1});
    if (groups != heads / summed)
      for (const size_t i : {kQ, kK}) out[i] = ordered_sum(out[i].unflatten(2, {groups, -1}), {3});
    out.push_back(has_state ? dstate : Tensor());
    out.resize(out.size() + 2);  // of the lengths and of `keep`
    return out;
  }
};

variable_list recurred(const LinearRecurrence& in, const Tensor& state, const ValueScales& scales) {
  const auto& v = in.v_BTHV;
  variable_list x = inputs(in, scales);
  // a decay per head that learns is one per token whose gradients are summed
  if (x[kDecay].defined() && x[kDecay].dim() == 1 && x[kDecay].requires_grad())
    x[kDecay] = spread(x[kDecay], {v.size(0), v.size(1), v.size(2)}).contiguous();
  const auto maybe = [](const Tensor& one) {
    return one.defined() ? std::optional<Tensor>(one) : std::nullopt;
  };
  return FusedRecurrence::apply(x[kQ], x[kK], x[kV], maybe(x[kDecay]), maybe(x[kBeta]),
                                maybe(x[kA]), maybe(x[kB]), maybe(x[kU]), maybe(x[kRate]),
                                maybe(x[kSkip]), maybe(state), in.documents,
                                /*keep=*/at::GradMode::is_enabled());
}

}  // namespace

std::pair<Tensor, Tensor> linear_recurrence_fused(const LinearRecurrence& in,
                                                  const Tensor& state_BHKV,
                                                  const ValueScales& scales) {
  require(in.documents.empty(), "linear_recurrence", "documents have no final state");
  const auto& v = in.v_BTHV;
  const Tensor state =
      state_BHKV.defined()
          ? single(state_BHKV)
          : at::zeros({v.size(0), v.size(2), in.q_BTHK.size(3), v.size(3)}, at::kFloat);
  if (v.size(0) * v.size(1) == 0) return {v, state};
  const variable_list out = recurred(in, state, scales);
  return {out[0].to(v.scalar_type()), out[1]};
}

Tensor linear_recurrence_fused_y(const LinearRecurrence& in, const ValueScales& scales) {
  const auto& v = in.v_BTHV;
  if (v.size(0) * v.size(1) == 0) return v;
  const auto& [q, k, values, decay, beta, a, b, u, documents] = in;
  bool learns = false;
  for (const Tensor* one :
       {&q, &k, &values, &decay, &beta, &a, &b, &u, &scales.rate_BTH, &scales.skip_H})
    learns = learns || (one->defined() && one->requires_grad());
  learns = learns && at::GradMode::is_enabled();
  if (learns && !documents.empty()) return recurred(in, {}, scales)[0].to(v.scalar_type());
  if (learns) return linear_recurrence_fused(in, {}, scales).first;
  const variable_list x = inputs(in, scales);
  Tensor y = at::empty(v.sizes(), at::kFloat);
  for (const Sequence& s : sequences_of(v, documents)) {
    auto r = recurrence(x, s);
    r.y = token(y, s.first);
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
  return on_cpu(form_of(Op::linear_recurrence, in.v_BTHV));
}

}  // namespace

std::pair<Tensor, Tensor> linear_recurrence(const LinearRecurrence& in,
                                            int64_t chunk,
                                            const Tensor& state_BHKV) {
  return has_fused_form(in) ? linear_recurrence_fused(in, state_BHKV)
                            : linear_recurrence_chunked(in, chunk, state_BHKV);
}

std::vector<LinearRecurrence> by_document(const LinearRecurrence& in) {
  std::vector<LinearRecurrence> out(in.documents.size());
  for (Tensor LinearRecurrence::*const x :
       {&LinearRecurrence::q_BTHK, &LinearRecurrence::k_BTHK, &LinearRecurrence::v_BTHV,
        &LinearRecurrence::log_decay, &LinearRecurrence::beta_BTH, &LinearRecurrence::a_BTHK,
        &LinearRecurrence::b_BTHK}) {
    const bool of_tokens = (in.*x).defined() && (in.*x).dim() > 1;
    const std::vector<Tensor> pieces =
        of_tokens ? (in.*x).split_with_sizes(in.documents, 1) : std::vector<Tensor>();
    for (size_t i = 0; i < out.size(); ++i) out[i].*x = of_tokens ? pieces[i] : in.*x;
  }
  for (LinearRecurrence& one : out) one.u_HK = in.u_HK;
  return out;
}

Tensor linear_recurrence_y(const LinearRecurrence& in, int64_t chunk) {
  if (has_fused_form(in)) return linear_recurrence_fused_y(in);
  if (in.documents.empty()) return linear_recurrence_chunked(in, chunk).first;
  std::vector<Tensor> out;
  for (const LinearRecurrence& one : by_document(in))
    out.push_back(linear_recurrence_chunked(one, chunk).first);
  return at::cat(out, 1);
}

}  // namespace tessera::ops
