#include "tessera/ops/weights/unpack.h"

#include "tessera/ops/weights/lookup_tables.h"
#include "tessera/ops/weights/packed_product.h"

namespace tessera::ops {
namespace {

/// M blocks, uint8 [M, bytes], field by field. Layouts: kernels/weights/blocks.h.
class Fields {
 public:
  explicit Fields(Tensor blocks_MB)
      : blocks_(std::move(blocks_MB)), tables_(lookup_tables(blocks_.device())) {}
  int64_t count() const { return blocks_.size(0); }
  const LookupTables& tables() const { return tables_; }

  Tensor bytes(int64_t begin, int64_t count) const { return blocks_.narrow(1, begin, count); }
  /// Whole numbers without sign as int32, of 16 and of 32 bits; the sign bit of 32 is theirs.
  Tensor words16(int64_t begin, int64_t count) const {
    return as(begin, 2 * count, at::kShort).to(at::kInt).bitwise_and(0xffff);
  }
  Tensor words32(int64_t begin, int64_t count) const { return as(begin, 4 * count, at::kInt); }
  // float32 [M, n]
  Tensor floats(int64_t begin) const { return as(begin, 4, at::kFloat); }
  Tensor half(int64_t begin) const { return as(begin, 2, at::kHalf).to(at::kFloat); }
  Tensor signed16(int64_t begin) const { return as(begin, 2, at::kShort).to(at::kFloat); }
  Tensor signed8(int64_t begin, int64_t count) const {
    return as(begin, count, at::kChar).to(at::kFloat);
  }

 private:
  Tensor as(int64_t begin, int64_t count, at::ScalarType type) const {
    return bytes(begin, count).clone(at::MemoryFormat::Contiguous).view(type);
  }
  Tensor blocks_;
  const LookupTables& tables_;
};

/// Groups of `bits` bits of each byte, the lowest first, along a new axis before the last.
Tensor groups_of_bits(const Tensor& bytes, int bits) {
  std::vector<Tensor> groups;
  for (int shift = 0; shift < 8; shift += bits)
    groups.push_back(bytes.bitwise_right_shift(shift).bitwise_and((1 << bits) - 1));
  return at::stack(groups, -2);
}

/// [M, N] -> [M, 8 N / bits]: groups of bits of each byte after those of the byte before it.
Tensor bits_in_turn(const Tensor& bytes_MN, int bits) {
  return groups_of_bits(bytes_MN, bits).transpose(1, 2).flatten(1);
}

/// [M, N] -> [M, N * count]: the lowest groups of `bits` bits of each number, one after the other.
Tensor parts_in_turn(const Tensor& numbers_MN, int bits, int count) {
  std::vector<Tensor> parts;
  for (int part = 0; part < count; ++part)
    parts.push_back(numbers_MN.bitwise_right_shift(bits * part).bitwise_and((1 << bits) - 1));
  return at::stack(parts, -1).flatten(1);
}

/// Codes of 32 numbers in 16 bytes: first the low halves, then the high ones.
Tensor nibbles(const Tensor& bytes_M16) {
  return groups_of_bits(bytes_M16, 4).flatten(1);
}

/// The fifth bits of 32 numbers in 4 bytes.
Tensor fifth_bits(const Tensor& bytes_M4) {
  return bits_in_turn(bytes_M4, 1).bitwise_left_shift(4);
}

/// Two bits of 256 numbers in 64 bytes.
Tensor two_bits(const Tensor& bytes_M64) {
  return groups_of_bits(bytes_M64.reshape({bytes_M64.size(0), 2, 32}), 2).flatten(1);
}

Tensor floats_of(const Tensor& codes) {
  return codes.to(at::kFloat);
}

/// Low codes with more bits above them, as int32.
Tensor joined(const Tensor& low, const Tensor& high, int bits) {
  return low.to(at::kInt).bitwise_or(high.to(at::kInt).bitwise_left_shift(bits));
}

/// [M, N] of rows of a table [.., W] -> float32 [M, N, W].
Tensor looked_up(const Tensor& table, const Tensor& index_MN) {
  return table.index_select(0, index_MN.to(at::kInt).flatten())
      .reshape({index_MN.size(0), index_MN.size(1), table.size(1)});
}

/// The numbers of M blocks in G parts: [M, G, ..].
Tensor in_parts(const Tensor& numbers, int64_t g) {
  const Tensor flat = numbers.flatten(1);
  return flat.reshape({flat.size(0), g, flat.size(1) / g});
}

/// Numbers of M blocks, each part times its factor of d_MG.
Tensor scaled(const Tensor& d_MG, const Tensor& numbers) {
  return (d_MG.unsqueeze(-1) * in_parts(numbers, d_MG.size(1))).flatten(1);
}

/// As nibbles(), of a table of halves of bytes: float32 [M, 32].
Tensor levels_of(const Tensor& table, const Tensor& bytes_M16) {
  return looked_up(table, bytes_M16).transpose(1, 2).flatten(1);
}

// --- blocks of 256 numbers ---

/// Q4_K and Q5_K: scales and minima [M, 8] of eight groups, six bits each in 12 bytes.
std::pair<Tensor, Tensor> scales_and_minima(const Tensor& bytes_M12) {
  const Tensor a = bytes_M12.narrow(1, 0, 4), b = bytes_M12.narrow(1, 4, 4),
               c = bytes_M12.narrow(1, 8, 4);
  const auto high = [](const Tensor& x) { return x.bitwise_right_shift(6).bitwise_left_shift(4); };
  return {at::cat({a.bitwise_and(63), c.bitwise_and(15).bitwise_or(high(a))}, 1),
          at::cat({b.bitwise_and(63), c.bitwise_right_shift(4).bitwise_or(high(b))}, 1)};
}

/// d scale code - m minimum, of groups of equal length.
Tensor with_minima(const Fields& f,
                   int64_t d_at,
                   const Tensor& scales,
                   const Tensor& minima,
                   const Tensor& codes) {
  const Tensor d = f.half(d_at) * floats_of(scales), least = f.half(d_at + 2) * floats_of(minima);
  return (d.unsqueeze(-1) * in_parts(floats_of(codes), d.size(1)) - least.unsqueeze(-1)).flatten(1);
}

Tensor unpacked_k(DType dtype, const Fields& f) {
  const int64_t m = f.count();
  switch (dtype) {
    case DType::q2_k: {
      const Tensor scales = f.bytes(0, 16);
      return with_minima(f, 80, scales.bitwise_and(15), scales.bitwise_right_shift(4),
                         two_bits(f.bytes(16, 64)));
    }
    case DType::q3_k: {
      const Tensor high = groups_of_bits(f.bytes(0, 32), 1).flatten(1);
      const Tensor codes = two_bits(f.bytes(32, 64)).bitwise_or(high.bitwise_left_shift(2));
      const Tensor scales = joined(groups_of_bits(f.bytes(96, 8), 4).flatten(1),
                                   groups_of_bits(f.bytes(104, 4), 2).flatten(1), 4);
      return scaled(f.half(108) * (floats_of(scales) - 32), floats_of(codes) - 4);
    }
    case DType::q6_k: {
      const Tensor low = groups_of_bits(f.bytes(0, 128).reshape({m, 2, 64}), 4).flatten(2),
                   high = groups_of_bits(f.bytes(128, 64).reshape({m, 2, 32}), 2).flatten(2);
      return scaled(f.half(208) * f.signed8(192, 16),
                    floats_of(low.bitwise_or(high.bitwise_left_shift(4))) - 32);
    }
    default: {
      const auto [scales, minima] = scales_and_minima(f.bytes(4, 12));
      const int64_t at = dtype == DType::q4_k ? 16 : 48;
      Tensor codes = groups_of_bits(f.bytes(at, 128).reshape({m, 4, 32}), 4).reshape({m, 8, 32});
      if (dtype == DType::q5_k)
        codes = codes.bitwise_or(groups_of_bits(f.bytes(16, 32), 1).bitwise_left_shift(4));
      return with_minima(f, 0, scales, minima, codes);
    }
  }
}

/// Five digits of base 3 in each byte, or the first `count` of them.
Tensor thirds(const Tensor& bytes_MN, int count) {
  std::vector<Tensor> digits;
  for (int digit = 0, power = 1; digit < count; ++digit, power *= 3)
    digits.push_back(bytes_MN.mul(power).to(at::kInt).mul(3).bitwise_right_shift(8));  // of 8 bits
  return at::stack(digits, 1).flatten(1);
}

/// With code books: IQ2 and IQ3 have magnitudes and signs, IQ1 has steps that a block moves.
Tensor unpacked_books(DType dtype, const Fields& f) {
  const LookupTables& t = f.tables();
  const auto with_signs = [](const Tensor& sizes, const Tensor& signs) {
    return sizes.reshape(signs.sizes()) * signs;
  };
  // d (factor + 1/2) by
  const auto factors = [&](const Tensor& of, double by) {
    return f.half(0) * (floats_of(of) + 0.5) * by;
  };
  // seven bits of signs for each of four eights, and a factor in the uppermost four
  const auto even_signs = [&](const Tensor& words_M8) {
    return looked_up(t.even_signs, parts_in_turn(words_M8, 7, 4));
  };
  const auto uppermost = [](const Tensor& words) {
    return words.bitwise_right_shift(28).bitwise_and(15);
  };
  // a step up, or down where there is a bit
  const auto moves = [](const Tensor& bits) { return 0.125 - floats_of(bits) * 0.25; };
  switch (dtype) {
    case DType::iq2_xxs: {
      const Tensor groups = f.bytes(2, 64).reshape({f.count(), 8, 8});
      const Tensor words = f.words32(2, 16).reshape({f.count(), 8, 2}).select(2, 1);
      const Tensor sizes = looked_up(t.iq2_xxs, groups.narrow(2, 0, 4).flatten(1));
      return scaled(factors(uppermost(words), 0.25), with_signs(sizes, even_signs(words)));
    }
    case DType::iq2_xs: {
      const Tensor words = f.words16(2, 32);
      return scaled(factors(bits_in_turn(f.bytes(66, 8), 4), 0.25),
                    with_signs(looked_up(t.iq2_xs, words.bitwise_and(511)),
                               looked_up(t.even_signs, words.bitwise_right_shift(9))));
    }
    case DType::iq2_s: {
      const Tensor index = joined(f.bytes(2, 32), bits_in_turn(f.bytes(66, 8), 2), 8);
      return scaled(factors(bits_in_turn(f.bytes(74, 8), 4), 0.25),
                    with_signs(looked_up(t.iq2_s, index), looked_up(t.signs, f.bytes(34, 32))));
    }
    case DType::iq3_xxs: {
      const Tensor words = f.words32(66, 8);
      return scaled(factors(uppermost(words), 0.5),
                    with_signs(looked_up(t.iq3_xxs, f.bytes(2, 64)), even_signs(words)));
    }
    case DType::iq3_s: {
      const Tensor index = joined(f.bytes(2, 64), bits_in_turn(f.bytes(66, 8), 1), 8);
      return scaled(f.half(0) * (floats_of(bits_in_turn(f.bytes(106, 4), 4)) * 2 + 1),
                    with_signs(looked_up(t.iq3_s, index), looked_up(t.signs, f.bytes(74, 32))));
    }
    case DType::iq1_s: {
      const Tensor words = f.words16(34, 8);
      const Tensor index = joined(f.bytes(2, 32), parts_in_turn(words, 3, 4), 8);
      const Tensor steps = looked_up(t.iq1, index).reshape({f.count(), 8, 32}) +
                           moves(words.bitwise_right_shift(15)).unsqueeze(-1);
      const Tensor scales = words.bitwise_right_shift(12).bitwise_and(7);
      return scaled(f.half(0) * (floats_of(scales) * 2 + 1), steps);
    }
    default: {
      // a half in the uppermost four bits of four words
      const auto byte = [&](int64_t first) {
        return f.bytes(first, 1).bitwise_right_shift(4).bitwise_or(
            f.bytes(first + 2, 1).bitwise_and(0xf0));
      };
      const Tensor d = at::cat({byte(49), byte(53)}, 1).view(at::kHalf).to(at::kFloat);
      const Tensor scales = parts_in_turn(f.words16(48, 4), 3, 4),
                   more = bits_in_turn(f.bytes(32, 16), 4),
                   index = joined(f.bytes(0, 32), more.bitwise_and(7), 8);
      return scaled(d * (floats_of(scales) * 2 + 1),
                    looked_up(t.iq1, index) + moves(more.bitwise_right_shift(3)).unsqueeze(-1));
    }
  }
}

// --- all of them ---

Tensor unpacked_blocks(DType dtype, const Fields& f) {
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
      return f.half(0) * f.signed8(2, 32);
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
      return unpacked_k(dtype, f);
    case DType::iq4_nl:
      return f.half(0) * levels_of(f.tables().levels, f.bytes(2, 16));
    case DType::iq4_xs: {
      const Tensor scales =
          joined(bits_in_turn(f.bytes(4, 4), 4), bits_in_turn(f.bytes(2, 2), 2), 4);
      const Tensor numbers =
          levels_of(f.tables().levels, f.bytes(8, 128).reshape({f.count() * 8, 16}));
      return scaled(f.half(0) * (floats_of(scales) - 32), numbers.reshape({f.count(), 256}));
    }
    case DType::mxfp4:
      return looked_up(f.tables().half_of_e8m0, f.bytes(0, 1)).flatten(1) *
             levels_of(f.tables().twice_e2m1, f.bytes(1, 16));
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::iq3_xxs:
    case DType::iq3_s:
      return unpacked_books(dtype, f);
    case DType::tq1_0:
      return f.half(52) * (floats_of(at::cat({thirds(f.bytes(0, 32), 5), thirds(f.bytes(32, 16), 5),
                                              thirds(f.bytes(48, 4), 4)},
                                             1)) -
                           1);
    case DType::tq2_0:
      return f.half(64) * (floats_of(two_bits(f.bytes(0, 64))) - 1);
    case DType::scaled_u4:
      return f.floats(0) * (floats_of(nibbles(f.bytes(5, 16))) - floats_of(f.bytes(4, 1)));
    case DType::scaled_i8:
      return f.floats(0) * (f.signed8(6, 32) - f.signed16(4));
    case DType::scaled_e4m3:
      return f.floats(0) * looked_up(f.tables().e4m3, f.bytes(4, 32)).flatten(1);
    default:
      fail(ErrorKind::internal, "weight", "{} is no block type", name_of(dtype));
  }
}

}  // namespace

Tensor unpacked(DType dtype, const Tensor& rows_RB, at::ScalarType type) {
  if (unpack_kernel_serves(dtype, rows_RB, type)) return unpacked_by_kernel(dtype, rows_RB, type);
  const DTypeLayout& layout = layout_of(dtype);
  const int64_t rows = rows_RB.size(0), of_row = rows_RB.size(1) / layout.block_bytes;
  const Tensor blocks_MB = rows_RB.reshape({rows * of_row, layout.block_bytes});
  return unpacked_blocks(dtype, Fields(blocks_MB))
      .reshape({rows, of_row * layout.block_elements})
      .to(type);
}

}  // namespace tessera::ops
