#include "tessera/ops/weights/to_device.h"

namespace tessera::ops {
namespace {

/// The numbers of a stored weight as a tensor on the host, columns in their order.
Tensor host_numbers(const Weight& w) {
  switch (w.dtype()) {
    case DType::f64:  // tensor() is of float32
      return at::from_blob(const_cast<void*>(w.data()), w.shape(), at::kDouble);
    case DType::f16:
    case DType::bf16:
      return w.tensor().to(scalar_type_of(w.dtype()));
    default:
      return w.tensor();
  }
}

}  // namespace

WeightPtr to_device(const WeightPtr& w, at::Device device) {
  if (w == nullptr || w->device() == device) return w;
  Weight out;
  if (const Weight::Adapted* given = w->parts()) {
    Weight::Adapted parts = *given;
    for (WeightPtr* part :
         {&parts.w, &parts.a, &parts.b, &parts.magnitude, &parts.out, &parts.in, &parts.prefix})
      *part = to_device(*part, device);
    out = Weight::adapted(std::move(parts));
  } else {
    const bool dense = w->dense_tensor().defined();
    const Tensor numbers = dense ? w->dense_tensor().detach() : host_numbers(*w);
    out = Weight::dense(w->name(), numbers.to(device).requires_grad_(w->trainable()));
  }
  out = out.multiplied_in(w->arithmetic()).rounded(w->rounding());
  return std::make_shared<const Weight>(w->is_of_whole_texts() ? out.of_whole_texts() : out);
}

}  // namespace tessera::ops
