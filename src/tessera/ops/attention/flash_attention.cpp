#include "tessera/ops/attention/flash_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/attention/flash_attention.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FlashWork final : torch::CustomClassHolder {
  int64_t start = 0, first = 0;
  ScoreOptions options;                      // without its tensors, which are inputs
  std::vector<kernels::KeyRange> documents;  // of each query; empty: one for all
  std::vector<kernels::DropoutRow> dropout;  // of each query of each sequence
  bool has_sinks = false, has_bias = false;
};

Tensor rows(const Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

kernels::ConstHeads heads(const Tensor& x) {
  return {x.const_data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)};
}
kernels::MutableHeads mutable_heads(const Tensor& x) {
  return {x.data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)};
}

/// What autograd sees, and what it saves: q, k, v, then sinks and the table where there are any.
struct Inputs {
  Tensor q, k, v, sinks, bias;
  size_t sinks_at = 0, bias_at = 0;  // their numbers in the list; 0: none

  Inputs(const FlashWork& work, at::TensorList list) : q(list[0]), k(list[1]), v(list[2]) {
    size_t at = 3;
    if (work.has_sinks) sinks_at = at, sinks = list[at++];
    if (work.has_bias) bias_at = at, bias = list[at];
  }
};

kernels::FlashAttention describe(const FlashWork& work, const Inputs& in) {
  const ScoreOptions& o = work.options;
  kernels::FlashAttention a;
  a.B = in.q.size(0), a.T = in.q.size(1), a.H = in.q.size(2), a.K = in.q.size(3);
  a.S = in.k.size(1), a.G = in.k.size(2), a.V = in.v.size(3);
  a.q = heads(in.q), a.k = heads(in.k), a.v = heads(in.v);
  a.first_query = work.start, a.first_key = work.first;
  a.causal = o.causal;
  // the kernel's symmetric window is |query - key| < window
  a.window = o.window == 0 ? 0 : o.causal ? o.window : o.window / 2 + 1;
  a.visible = o.visibility.get();
  if (!work.documents.empty()) a.documents = work.documents.data();
  a.scale = static_cast<float>(o.scale);
  a.softcap = static_cast<float>(o.softcap);
  if (o.dropout) {
    a.dropout_limit = o.dropout.limit();
    a.dropout_scale = o.dropout.scale();
    a.dropout = work.dropout.data();
  }
  if (in.sinks.defined()) a.sinks = in.sinks.const_data_ptr<float>();
  if (in.bias.defined()) {
    a.bias = in.bias.const_data_ptr<float>();
    a.bias_head_stride = in.bias.size(0) == 1 ? 0 : in.bias.size(1);
    a.bias_zero = o.term.zero, a.bias_size = in.bias.size(1);
  }
  return a;
}

struct Flash : torch::autograd::Function<Flash> {
  static Tensor forward(AutogradContext* context,
                        const c10::intrusive_ptr<FlashWork>& work,
                        at::TensorList list) {
    variable_list saved;
    for (size_t i = 0; i < list.size(); ++i)
      saved.push_back(i < 3 ? rows(list[i]) : list[i].contiguous());
    const kernels::FlashAttention a = describe(*work, Inputs(*work, saved));
    Tensor out = at::empty({a.B, a.T, a.H, a.V}, list[0].options());
    Tensor lse = at::empty({a.B, a.H, a.T}, list[0].options());
    kernels::flash_forward(a, mutable_heads(out), lse.data_ptr<float>());
    saved.push_back(out);
    saved.push_back(lse);
    context->save_for_backward(saved);
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto holder = context->saved_data["work"].toCapsule();
    const FlashWork& work = *static_cast<const FlashWork*>(holder.get());
    const Inputs in(work, saved);
    const kernels::FlashAttention a = describe(work, in);
    const Tensor &out = saved[saved.size() - 2], &lse = saved.back(), d_out = rows(gradients[0]);
    // of `work`, then of the list
    variable_list results(1 + saved.size() - 2);
    Tensor& dq = results[1] = at::empty({a.B, a.T, a.H, a.K}, out.options());
    Tensor& dk = results[2] = at::empty({a.B, a.S, a.G, a.K}, out.options());
    Tensor& dv = results[3] = at::empty({a.B, a.S, a.G, a.V}, out.options());
    kernels::FlashGradients g;
    g.out = heads(out), g.d_out = heads(d_out), g.lse = lse.const_data_ptr<float>();
    g.dq = mutable_heads(dq), g.dk = mutable_heads(dk), g.dv = mutable_heads(dv);
    if (in.sinks_at > 0 && context->needs_input_grad(in.sinks_at)) {
      results[1 + in.sinks_at] = at::empty({a.H}, out.options());
      g.d_sinks = results[1 + in.sinks_at].data_ptr<float>();
    }
    const bool wants_bias = in.bias_at > 0 && context->needs_input_grad(in.bias_at);
    if (wants_bias) {
      results[1 + in.bias_at] = at::empty({a.H, a.bias_size}, out.options());
      g.d_bias = results[1 + in.bias_at].data_ptr<float>();
    }
    kernels::flash_backward(a, g);
    // one row for all heads gets the sum of theirs
    if (wants_bias && in.bias.size(0) == 1)
      results[1 + in.bias_at] = ordered_sum(results[1 + in.bias_at], {0}, true);
    return results;
  }
};

/// Those of matrices [H, T, S], of which number 0 is that of element `at`, and whose keys stand
/// from `first` on.
void number_weights(
    FlashWork& work, const RandomKey& key, int64_t at, int64_t t, int64_t s, int64_t first) {
  for (int64_t i = 0; i < t; ++i)
    work.dropout.push_back(
        {key.value(), static_cast<uint64_t>(at + i * s - first), static_cast<uint64_t>(t * s)});
}

Tensor flash(const c10::intrusive_ptr<FlashWork>& work,
             const Tensor& q_BTHD,
             const Tensor& k_BSGD,
             const Tensor& v_BSGD,
             const ScoreOptions& options) {
  work->options = options;
  work->options.sinks_H = Tensor();
  work->options.term.bias_HR = Tensor();
  std::vector<Tensor> inputs{q_BTHD, k_BSGD, v_BSGD};
  if ((work->has_sinks = options.sinks_H.defined())) inputs.push_back(options.sinks_H);
  if ((work->has_bias = options.term.bias_HR.defined())) inputs.push_back(options.term.bias_HR);
  for (Tensor& x : inputs) x = x.to(at::kFloat);
  return Flash::apply(work, at::TensorList(inputs)).to(q_BTHD.scalar_type());
}

}  // namespace

Tensor flash_attention(const Tensor& q_BTHD,
                       const Tensor& k_BSGD,
                       const Tensor& v_BSGD,
                       int64_t start,
                       int64_t first,
                       const ScoreOptions& options) {
  const auto work = c10::make_intrusive<FlashWork>();
  work->start = start;
  work->first = first;
  const int64_t b = q_BTHD.size(0), t = q_BTHD.size(1), s = k_BSGD.size(1), h = q_BTHD.size(2);
  const bool apart = !options.dropout.streams.empty();
  for (int64_t i = 0; options.dropout && i < b; ++i)
    number_weights(*work, options.dropout.stream(i, b), apart ? 0 : i * h * t * s, t, s, 0);
  return flash(work, q_BTHD, k_BSGD, v_BSGD, options);
}

Tensor flash_documents(const Tensor& q_NHD,
                       const Tensor& k_SGD,
                       const Tensor& v_SGD,
                       const std::vector<int64_t>& lengths,
                       const std::vector<int64_t>& keys,
                       const ScoreOptions& options) {
  const std::vector<RandomKey>& streams = options.dropout.streams;
  require(lengths.size() == keys.size(), "flash_documents", "keys of {} documents; expected {}",
          keys.size(), lengths.size());
  const auto work = c10::make_intrusive<FlashWork>();
  require(!options.dropout || streams.size() == lengths.size(), "flash_documents",
          "{} streams of random numbers for {} documents", streams.size(), lengths.size());
  int64_t first = 0;
  for (size_t i = 0; i < lengths.size(); first += keys[i++]) {
    work->documents.insert(work->documents.end(), static_cast<size_t>(lengths[i]),
                           {first, first + keys[i]});
    if (options.dropout) number_weights(*work, streams[i], 0, lengths[i], keys[i], first);
  }
  return flash(work, q_NHD.unsqueeze(0), k_SGD.unsqueeze(0), v_SGD.unsqueeze(0), options)
      .squeeze(0);
}

}  // namespace tessera::ops
