#include "tessera/ops/attention/kv_rows.h"

#include "tessera/base/threads.h"
#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/spec/kv_type.h"

namespace tessera::ops {
namespace {

static_assert(kernels::kScaleBytes == spec::kKvScaleBytes);

bool packs(at::ScalarType type) {
  return type == at::kChar || type == at::kByte || type == at::kShort;
}

/// Elements of the last axis for `width` numbers.
int64_t row_size(at::ScalarType type, int64_t width) {
  if (type == at::kShort)
    return (width + spec::kKvBlock - 1) / spec::kKvBlock * spec::kKvBlockNumbers;
  return width + (packs(type) ? kernels::kScaleBytes : 0);
}

Tensor with_row(const Tensor& x, int64_t size, at::ScalarType type) {
  auto shape = x.sizes().vec();
  shape.back() = size;
  return at::empty(shape, at::TensorOptions().dtype(type));
}

}  // namespace

at::ScalarType kv_scalar_type(DType type) {
  switch (type) {
    case DType::f32:
      return at::kFloat;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::i8:
      return at::kChar;
    case DType::u8:
      return at::kByte;
    case DType::i16:
      return at::kShort;
    default:
      fail(ErrorKind::internal, "kv_rows", "keys and values of type {}", name_of(type));
  }
}

DType kv_dtype(at::ScalarType type) {
  for (const DType known : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::u8, DType::i16})
    if (kv_scalar_type(known) == type) return known;
  fail(ErrorKind::internal, "kv_rows", "keys and values of type {}", c10::toString(type));
}

at::TensorOptions stored_in(DType type, at::TensorOptions options) {
  return type == DType::f32 ? options : options.dtype(kv_scalar_type(type));
}

bool is_packed(const Tensor& rows) {
  return packs(rows.scalar_type());
}

int64_t row_width(const Tensor& rows) {
  if (rows.scalar_type() == at::kShort)
    return rows.size(-1) / spec::kKvBlockNumbers * spec::kKvBlock;
  return rows.size(-1) - (is_packed(rows) ? kernels::kScaleBytes : 0);
}

Tensor first_of_rows(const Tensor& rows, int64_t width) {
  return rows.narrow(-1, 0, row_size(rows.scalar_type(), width));
}

Tensor to_kv_rows(const Tensor& x, at::ScalarType type) {
  if (!packs(type)) return x.to(type);
  require(!(at::GradMode::is_enabled() && x.requires_grad()), "kv_rows",
          "packed keys and values have no gradient");
  const Tensor from = x.detach().to(at::kCPU, at::kFloat).contiguous();
  const int64_t width = from.size(-1), rows = width == 0 ? 0 : from.numel() / width;
  Tensor out = with_row(from, row_size(type, width), type);
  const DType stored = kv_dtype(type);
  const int64_t row = kernels::kv_row_bytes(stored, width);
  const float* numbers = from.const_data_ptr<float>();
  auto* bytes = static_cast<uint8_t*>(out.data_ptr());
  parallel_for(rows, 1 + (int64_t{1} << 14) / (1 + width), [&](int64_t begin, int64_t end) {
    kernels::write_kv_rows(stored, numbers + begin * width, end - begin, width,
                           bytes + begin * row);
  });
  return out.to(x.device());
}

Tensor from_kv_rows(const Tensor& rows, at::ScalarType type) {
  if (!is_packed(rows)) return rows.to(type);
  const Tensor from = rows.to(at::kCPU).contiguous();
  const int64_t width = row_width(from), n = from.numel() / std::max<int64_t>(1, from.size(-1));
  Tensor out = with_row(from, width, at::kFloat);
  const DType stored = kv_dtype(from.scalar_type());
  const int64_t bytes = kernels::kv_row_bytes(stored, width);
  const auto* codes = static_cast<const uint8_t*>(from.const_data_ptr());
  auto* numbers = out.data_ptr<float>();
  parallel_for(n, 1 + (int64_t{1} << 14) / (1 + width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      kernels::read_kv_row(stored, codes + i * bytes, width, numbers + i * width);
  });
  return out.to(rows.device(), type);
}

}  // namespace tessera::ops
