#include "tessera/ops/cuda_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::ops {
namespace {

/// The CUstream of a stream; libtorch gives it out from 2.12 on.
template <class Guard>
void* handle_of(const Guard& device, const c10::Stream& stream) {
  if constexpr (requires { device.getStreamNativeHandle(stream); }) {
    return device.getStreamNativeHandle(stream);
  } else {
    if (stream.id() != 0)
      fail(ErrorKind::resource, "cuda",
           "kernels in a stream other than the default one; expected libtorch 2.12 or later");
    return nullptr;
  }
}

}  // namespace

cuda::Stream stream_of(const Tensor& x) {
  if (!x.is_cuda()) return {};
  const c10::impl::VirtualGuardImpl device(x.device().type());
  return {x.device().index(), handle_of(device, device.getStream(x.device()))};
}

}  // namespace tessera::ops
