#include "tessera/ops/weights/to_device.h"

#include <cstring>

namespace tessera::ops {
namespace {

/// The numbers of a stored weight as a tensor of their type on the host, or in float32.
Tensor host_numbers(const Weight& w) {
  switch (w.dtype()) {
    case DType::f64:
    case DType::f16:
    case DType::bf16: {
      Tensor numbers = at::empty(w.shape(), scalar_type_of(w.dtype()));
      // a mapped file need not be aligned
      std::memcpy(numbers.mutable_data_ptr(), w.data(), static_cast<size_t>(w.bytes()));
      return numbers;
    }
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
  out = out.multiplied_in(w->arithmetic());
  return std::make_shared<const Weight>(w->is_of_whole_texts() ? out.of_whole_texts() : out);
}

}  // namespace tessera::ops
