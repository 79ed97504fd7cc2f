#include "tessera/kernels/attention.h"

#include "tessera/ops/attention.h"

namespace tessera::ops {
namespace {

/// Whether two spans are the end and the beginning of one ring.
bool wraps(const KeyValues& a, const KeyValues& b) {
  return a.k_SGD.storage().is_alias_of(b.k_SGD.storage()) && b.k_SGD.storage_offset() == 0 &&
         a.k_SGD.stride(0) == b.k_SGD.stride(0) &&
         a.k_SGD.storage_offset() % a.k_SGD.stride(0) == 0;
}

Tensor dense_rows(const Tensor& t) {
  return t.stride(2) == 1 ? t : t.contiguous();
}

}  // namespace

Tensor attention_kernel(const Tensor& q_THD,
                        const std::vector<KeyValues>& kv,
                        int64_t start,
                        const ScoreOptions& options) {
  const Tensor q = q_THD.contiguous();
  Tensor out = at::empty_like(q);
  kernels::Attention a;
  a.T = q.size(0), a.H = q.size(1), a.K = q.size(2);
  a.q = q.const_data_ptr<float>();
  a.q_token_stride = q.stride(0), a.q_head_stride = q.stride(1);
  a.out = out.data_ptr<float>();
  a.out_token_stride = out.stride(0), a.out_head_stride = out.stride(1);
  a.first_position = start;

  Tensor k, v;
  int64_t first_slot = 0, count = 0, capacity = 0;
  for (const KeyValues& part : kv) count += part.k_SGD.size(0);
  if (kv.size() == 1) {
    k = dense_rows(kv[0].k_SGD);
    v = dense_rows(kv[0].v_SGD);
  } else if (kv.size() == 2 && wraps(kv[0], kv[1])) {
    k = kv[1].k_SGD;
    v = kv[1].v_SGD;
    first_slot = kv[0].k_SGD.storage_offset() / kv[0].k_SGD.stride(0);
    capacity = first_slot + kv[0].k_SGD.size(0);
  } else {
    std::vector<Tensor> keys, values;
    for (const KeyValues& part : kv) {
      keys.push_back(part.k_SGD);
      values.push_back(part.v_SGD);
    }
    k = at::cat(keys);
    v = at::cat(values);
  }
  a.G = k.size(1), a.V = v.size(2);
  a.kv.k = k.const_data_ptr<float>();
  a.kv.v = v.const_data_ptr<float>();
  a.kv.k_token_stride = k.stride(0), a.kv.k_head_stride = k.stride(1);
  a.kv.v_token_stride = v.stride(0), a.kv.v_head_stride = v.stride(1);
  a.kv.first_position = kv.front().first;
  a.kv.count = count;
  a.kv.first_slot = first_slot;
  a.kv.capacity = capacity;

  a.causal = options.causal;
  // the kernel's symmetric window is |query - key| < window
  a.window = options.window == 0 ? 0 : options.causal ? options.window : options.window / 2 + 1;
  a.scale = static_cast<float>(options.scale);
  a.softcap = static_cast<float>(options.softcap);
  kernels::attend(a);
  return out;
}

}  // namespace tessera::ops
