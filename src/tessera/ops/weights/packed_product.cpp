#include "tessera/ops/weights/packed_product.h"

#include "tessera/cuda/packed.h"
#include "tessera/ops/cuda_stream.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

/// Numbers of a row of these bytes.
int64_t numbers_in(DType type, int64_t bytes) {
  const DTypeLayout& layout = layout_of(type);
  return bytes / layout.block_bytes * layout.block_elements;
}

/// x at an address that is a multiple of `alignment`.
Tensor aligned(const Tensor& x, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % alignment == 0 ? x : x.clone();
}

template <class Number>
void unpack_into(DType type, const Tensor& rows_RB, const Tensor& to) {
  cuda::unpack(type,
               cuda::UnpackArguments<Number>{rows_RB.const_data_ptr<uint8_t>(),
                                             static_cast<Number*>(to.mutable_data_ptr()),
                                             to.size(1), to.size(0)},
               stream_of(rows_RB));
}

}  // namespace

bool packed_product_serves(DType type, const Tensor& x) {
  return form_of(Op::product, x) == Form::cuda && cuda::reads_packed(type) && x.numel() > 0 &&
         x.numel() <= cuda::kMostPackedRows * x.size(-1);
}

bool unpack_kernel_serves(DType type, const Tensor& rows_RB, at::ScalarType as) {
  Setting setting = setting_of(rows_RB);
  setting.type = at::kFloat;  // in which numbers are decoded
  return form_of(Op::product, setting) == Form::cuda && cuda::reads_packed(type) &&
         (as == at::kFloat || as == at::kBFloat16);
}

Tensor packed_product(DType type, const Tensor& rows_OB, const Tensor& x, const Tensor& bias_O) {
  const int64_t width = x.size(-1), outputs = rows_OB.size(0);
  require(numbers_in(type, rows_OB.size(1)) == width, "packed_product",
          "{} channels, rows of {} bytes of {}", width, rows_OB.size(1), name_of(type));
  auto sizes = x.sizes().vec();
  sizes.back() = outputs;
  const Tensor y = at::empty(sizes, x.options());
  const Tensor input = aligned(x.contiguous(), sizeof(cuda::FourFloats)),
               rows = rows_OB.contiguous(),
               bias = bias_O.defined() ? bias_O.to(x.options()).contiguous() : Tensor();
  cuda::packed_product(
      type,
      {input.const_data_ptr<float>(), rows.const_data_ptr<uint8_t>(),
       bias.defined() ? bias.const_data_ptr<float>() : nullptr, y.mutable_data_ptr<float>(), width,
       outputs, static_cast<int32_t>(input.numel() / width)},
      stream_of(x));
  return y;
}

Tensor unpacked_by_kernel(DType type, const Tensor& rows_RB, at::ScalarType as) {
  const Tensor rows = rows_RB.contiguous();
  const Tensor out =
      at::empty({rows.size(0), numbers_in(type, rows.size(1))}, rows.options().dtype(as));
  if (as == at::kBFloat16)
    unpack_into<uint16_t>(type, rows, out);
  else
    unpack_into<float>(type, rows, out);
  return out;
}

}  // namespace tessera::ops
