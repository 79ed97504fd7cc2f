#include "tessera/ops/attention_values.h"

#include "tessera/kernels/attention.h"

namespace tessera::ops {
namespace {

Tensor dense_rows(const Tensor& t) {
  return t.stride(-1) == 1 ? t : t.contiguous();
}

}  // namespace

Tensor attention_values(const Tensor& q_THK,
                        const KeyValues& kv,
                        int64_t start,
                        const ScoreOptions& options,
                        const std::function<Tensor(const Tensor&)>& drop) {
  if (!use_kernels(q_THK) || drop) return attention(q_THK, {kv}, start, options, drop);
  const Tensor q = dense_rows(q_THK), k = dense_rows(kv.k_SGD), v = dense_rows(kv.v_SGD);
  Tensor out = at::empty({q.size(0), q.size(1), v.size(2)}, q.options());
  kernels::Attention a;
  a.T = q.size(0), a.H = q.size(1), a.G = k.size(1), a.K = q.size(2), a.V = v.size(2);
  a.q = q.const_data_ptr<float>();
  a.q_token_stride = q.stride(0), a.q_head_stride = q.stride(1);
  a.out = out.data_ptr<float>();
  a.out_token_stride = out.stride(0), a.out_head_stride = out.stride(1);
  a.first_position = start;
  a.kv.k = k.const_data_ptr<float>();
  a.kv.v = v.const_data_ptr<float>();
  a.kv.k_token_stride = k.stride(0), a.kv.k_head_stride = k.stride(1);
  a.kv.v_token_stride = v.stride(0), a.kv.v_head_stride = v.stride(1);
  a.kv.first_position = kv.first;
  a.kv.count = k.size(0);
  a.causal = options.causal;
  // the kernel's symmetric window is |query - key| < window
  a.window = options.window == 0 ? 0 : options.causal ? options.window : options.window / 2 + 1;
  a.scale = static_cast<float>(options.scale);
  a.softcap = static_cast<float>(options.softcap);
  kernels::attend(a);
  return out;
}

}  // namespace tessera::ops
