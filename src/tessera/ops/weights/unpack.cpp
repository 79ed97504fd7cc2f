#include "tessera/ops/weights/unpack.h"

#include "tessera/ops/weights/packed_product.h"

namespace tessera::ops {
namespace {

/// Blocks, uint8 [M, bytes], field by field. Layouts: kernels/weights/blocks.h.
class Fields {
 public:
  explicit Fields(Tensor blocks_MB) : blocks_(std::move(blocks_MB)) {}
  Tensor bytes(int64_t begin, int64_t count) const { return blocks_.narrow(1, begin, count); }
  Tensor floats(int64_t begin) const { return as(begin, 4, at::kFloat); }
  Tensor half(int64_t begin) const { return as(begin, 2, at::kHalf); }
  Tensor whole16(int64_t begin) const { return as(begin, 2, at::kShort); }
  Tensor whole8(int64_t begin, int64_t count) const { return as(begin, count, at::kChar); }

 private:
  /// float32 [M, n] of what the bytes are as another type.
  Tensor as(int64_t begin, int64_t count, at::ScalarType type) const {
    return bytes(begin, count).clone(at::MemoryFormat::Contiguous).view(type).to(at::kFloat);
  }
  Tensor blocks_;
};

/// Groups of `bits` bits of each byte, the lowest first, along a new axis before the last.
Tensor groups_of_bits(const Tensor& bytes, int bits) {
  std::vector<Tensor> groups;
  for (int shift = 0; shift < 8; shift += bits)
    groups.push_back(bytes.bitwise_right_shift(shift).bitwise_and((1 << bits) - 1));
  return at::stack(groups, -2);
}

/// Codes of 32 numbers in 16 bytes: first the low halves, then the high ones.
Tensor nibbles(const Tensor& bytes_M16) {
  return groups_of_bits(bytes_M16, 4).flatten(1);
}

/// The fifth bits of 32 numbers in 4 bytes.
Tensor fifth_bits(const Tensor& bytes_M4) {
  return groups_of_bits(bytes_M4, 1).transpose(1, 2).flatten(1).bitwise_left_shift(4);
}

Tensor floats_of(const Tensor& codes) {
  return codes.to(at::kFloat);
}

/// Q4_K and Q5_K: scales and minima [M, 8] of eight groups, six bits each in 12 bytes.
std::pair<Tensor, Tensor> scales_and_minima(const Tensor& bytes_M12) {
  const Tensor a = bytes_M12.narrow(1, 0, 4), b = bytes_M12.narrow(1, 4, 4),
               c = bytes_M12.narrow(1, 8, 4);
  const auto high = [](const Tensor& x) { return x.bitwise_right_shift(6).bitwise_left_shift(4); };
  return {at::cat({a.bitwise_and(63), c.bitwise_and(15).bitwise_or(high(a))}, 1),
          at::cat({b.bitwise_and(63), c.bitwise_right_shift(4).bitwise_or(high(b))}, 1)};
}

Tensor unpacked_k(DType dtype, const Fields& f, int64_t m) {
  if (dtype == DType::q6_k) {
    const Tensor low = groups_of_bits(f.bytes(0, 128).reshape({m, 2, 64}), 4).flatten(2),
                 high = groups_of_bits(f.bytes(128, 64).reshape({m, 2, 32}), 2).flatten(2);
    const Tensor codes = low.bitwise_or(high.bitwise_left_shift(4)).reshape({m, 16, 16});
    const Tensor d = f.half(208) * f.whole8(192, 16);
    return (d.unsqueeze(-1) * (floats_of(codes) - 32)).flatten(1);
  }
  const auto [scales, minima] = scales_and_minima(f.bytes(4, 12));
  const int64_t at = dtype == DType::q4_k ? 16 : 48;
  Tensor codes = groups_of_bits(f.bytes(at, 128).reshape({m, 4, 32}), 4).reshape({m, 8, 32});
  if (dtype == DType::q5_k)
    codes = codes.bitwise_or(groups_of_bits(f.bytes(16, 32), 1).bitwise_left_shift(4));
  const Tensor d = f.half(0) * floats_of(scales), least = f.half(2) * floats_of(minima);
  return (d.unsqueeze(-1) * floats_of(codes) - least.unsqueeze(-1)).flatten(1);
}

Tensor unpacked_blocks(DType dtype, const Fields& f, int64_t m) {
  switch (dtype) {
    case DType::q4_0:
      return f.half(0) * (floats_of(nibbles(f.bytes(2, 16))) - 8);
    case DType::q4_1:
      return f.half(0) * floats_of(nibbles(f.bytes(4, 16))) + f.half(2);
    case DType::q5_0:
      return f.half(0) *
             (floats_of(nibbles(f.bytes(6, 16)).bitwise_or(fifth_bits(f.bytes(2, 4)))) - 16);
    case DType::q5_1:
      return f.half(0) * floats_of(nibbles(f.bytes(8, 16)).bitwise_or(fifth_bits(f.bytes(4, 4)))) +
             f.half(2);
    case DType::q8_0:
      return f.half(0) * f.whole8(2, 32);
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
      return unpacked_k(dtype, f, m);
    case DType::tq2_0:
      return f.half(64) *
             (floats_of(groups_of_bits(f.bytes(0, 64).reshape({m, 2, 32}), 2)).flatten(1) - 1);
    case DType::scaled_u4:
      return f.floats(0) * (floats_of(nibbles(f.bytes(5, 16))) - floats_of(f.bytes(4, 1)));
    case DType::scaled_i8:
      return f.floats(0) * (f.whole8(6, 32) - f.whole16(4));
    default:
      fail(ErrorKind::internal, "weight", "{} is not decoded on a device", name_of(dtype));
  }
}

}  // namespace

bool can_unpack(DType dtype) {
  switch (dtype) {
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::tq2_0:
    case DType::scaled_u4:
    case DType::scaled_i8:
      return true;
    default:
      return false;
  }
}

Tensor unpacked(DType dtype, const Tensor& rows_RB, at::ScalarType type) {
  if (unpack_kernel_serves(dtype, rows_RB, type)) return unpacked_by_kernel(dtype, rows_RB, type);
  const DTypeLayout& layout = layout_of(dtype);
  const int64_t rows = rows_RB.size(0), of_row = rows_RB.size(1) / layout.block_bytes;
  const Tensor blocks_MB = rows_RB.reshape({rows * of_row, layout.block_bytes});
  return unpacked_blocks(dtype, Fields(blocks_MB), rows * of_row)
      .reshape({rows, of_row * layout.block_elements})
      .to(type);
}

}  // namespace tessera::ops
