#include "tessera/ops/convolution/long_conv.h"

#include "tessera/kernels/convolution/long_conv.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/lti_scan.h"

namespace tessera::ops {
namespace {

// a transform of n inputs costs about as much as this many sums of n products
constexpr int64_t kFewTokens = 8;

Tensor by_kernel(const std::vector<Tensor>& parts, const Tensor& k_LH, int64_t start, int64_t t) {
  const bool rows = k_LH.scalar_type() == at::kFloat && k_LH.stride(1) == 1;
  const Tensor k = rows ? k_LH : k_LH.to(at::kFloat).contiguous();
  Tensor y = at::empty({t, k.size(1)}, k.options());
  kernels::LongConv conv;
  conv.T = t, conv.C = k.size(1);
  conv.k = k.const_data_ptr<float>(), conv.k_stride = k.stride(0);
  conv.y = y.data_ptr<float>();
  int64_t first = 0;
  for (const Tensor& part : parts) {
    const Tensor z = part.contiguous();
    conv.S = z.size(0), conv.start = start - first;
    conv.z = z.const_data_ptr<float>(), conv.z_stride = conv.C;
    kernels::long_conv(conv);
    conv.onto = true;
    first += conv.S;
  }
  return y;
}

}  // namespace

Tensor long_conv(const std::vector<Tensor>& parts, const Tensor& k_LH, int64_t tokens) {
  int64_t length = 0;
  for (const Tensor& part : parts) length += part.size(0);
  const int64_t start = length - tokens;
  if (kernel_serves(Op::long_conv, parts.front())) return by_kernel(parts, k_LH, start, tokens);
  // a copy, at an aligned address: a transform's bits depend on where its input lies
  const Tensor z_SH = at::cat(parts);
  if (tokens > kFewTokens || start == 0)
    return fft_conv(z_SH, k_LH, {length}).narrow(0, start, tokens);
  const Tensor z = z_SH.to(wide(z_SH)), k = k_LH.to(z.scalar_type());
  std::vector<Tensor> out;
  for (int64_t n = start + 1; n <= length; ++n)
    out.push_back((k.narrow(0, 0, n).flip(0) * z.narrow(0, 0, n)).sum(0));
  return at::stack(out);
}

}  // namespace tessera::ops
