#include "tessera/ops/linear/mlstm.h"

#include <vector>

#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"

namespace tessera::ops {
namespace {

/// Token after token in float32, so that no split of the input changes a bit.
Tensor running_maximum(const Tensor& log_f, const Tensor& i, const Tensor& m_BH) {
  Tensor m = at::empty_like(i);
  const int64_t batch = i.size(0), t = i.size(1), heads = i.size(2);
  const auto *f = log_f.const_data_ptr<float>(), *in = i.const_data_ptr<float>();
  auto* out = m.data_ptr<float>();
  std::vector<float> last(static_cast<size_t>(heads));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h)
      last[static_cast<size_t>(h)] =
          m_BH.defined() ? m_BH.const_data_ptr<float>()[b * heads + h] : 0.0f;
    for (int64_t at = b * t * heads; at < (b + 1) * t * heads; ++at) {
      float& value = last[static_cast<size_t>(at % heads)];
      out[at] = value = std::max(f[at] + value, in[at]);
    }
  }
  return m;
}

}  // namespace

MlstmGates mlstm_gates(const Tensor& log_f_BTH, const Tensor& i_BTH, const Tensor& m_BH) {
  const int64_t t = i_BTH.size(1);
  const auto options = i_BTH.options().requires_grad(false);
  const Tensor first = (m_BH.defined() ? m_BH.to(i_BTH.scalar_type())
                                       : at::zeros({i_BTH.size(0), i_BTH.size(2)}, options))
                           .contiguous()
                           .unsqueeze(1);
  if (t == 0) return {log_f_BTH, i_BTH, i_BTH, first.squeeze(1)};
  if (kernel_serves(Op::mlstm_gates, i_BTH)) {
    const Tensor log_f = log_f_BTH.contiguous(), i = i_BTH.contiguous();
    const Tensor m = running_maximum(log_f, i, first.squeeze(1));
    const Tensor before = at::cat({first, m.narrow(1, 0, t - 1)}, 1);
    return {log_f + before - m, -minus_exp(i - m), m, m.select(1, t - 1).clone()};
  }
  // m_t = F_t + max(m_0, max_{s <= t} (i_s - F_s)) with F the sums of log f: no step over tokens.
  // In double, where long sums keep the digits of short differences.
  const Tensor sums = log_f_BTH.to(at::kDouble).cumsum(1);
  const Tensor highest =
      at::maximum(std::get<0>(at::cummax(i_BTH.to(at::kDouble) - sums, 1)), first.to(at::kDouble));
  const Tensor m = sums + highest,
               before = at::cat({first.to(at::kDouble), m.narrow(1, 0, t - 1)}, 1);
  const auto type = i_BTH.scalar_type();
  return {(log_f_BTH.to(at::kDouble) + before - m).to(type),
          (i_BTH.to(at::kDouble) - m).to(type).exp(), m.to(type), m.select(1, t - 1).to(type)};
}

Tensor mlstm_read(const Tensor& y_BTHV, const Tensor& m_BTH, double eps) {
  const int64_t v = y_BTHV.size(3) - 1;
  const Tensor least = -minus_exp(-m_BTH.to(wide(y_BTHV)));
  const Tensor normaliser = y_BTHV.narrow(3, v, 1).to(wide(y_BTHV)).abs();
  return y_BTHV.narrow(3, 0, v) / (at::maximum(normaliser, least.unsqueeze(-1)) + eps);
}

}  // namespace tessera::ops
