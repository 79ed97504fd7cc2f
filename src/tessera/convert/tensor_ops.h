// Moves of tensor data that conversions are made of. What a view can express stays a view of the
// mapped file in its storage type; other moves copy bytes and keep the storage type; arithmetic
// gives float32. GGUF block types move as whole blocks along the last axis, and are decoded for
// arithmetic. An order of columns comes along where rows and matrices move whole; other moves
// decode first. Errors: Error(file) that names the tensor.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::convert {

using format::TensorView;
using Shape = std::vector<int64_t>;

/// Same elements, another shape.
TensorView reshaped(const TensorView& tensor, const Shape& shape);
/// Parts along an axis; `sizes` must add up to it. Axis 0 gives views.
std::vector<TensorView> split(const TensorView& tensor,
                              int64_t axis,
                              std::span<const int64_t> sizes);
/// The inverse; the storage types and, of parts of one matrix, the orders of columns must agree,
/// else all become float32.
TensorView joined(std::span<const TensorView> tensors, int64_t axis);
/// Axis k of the result is axis permutation[k] of the tensor.
TensorView transposed(const TensorView& tensor, std::span<const int64_t> permutation);
/// Row r of the result is row order[r] of the tensor (elements, when there is one axis).
TensorView with_rows(const TensorView& tensor, std::span<const int64_t> order);
/// Every element through a function, as float32.
TensorView mapped(const TensorView& tensor, const std::function<float(float)>& function);
TensorView as_float32(const TensorView& tensor);
/// A plain floating-point type other than float64 and block types stays; those become float32.
TensorView as_plain_float(const TensorView& tensor);
/// Integers of 32 or 64 bits as float32, which holds them exactly up to 2^24; floating-point
/// numbers as as_float32().
TensorView integers_as_float32(const TensorView& tensor);
/// Whole numbers as int64.
TensorView as_integers(const TensorView& tensor);
/// `count` rows of `value` after the last.
TensorView with_padding(const TensorView& tensor, int64_t count, double value);
/// Element by element, summed in double, stored as the first one's type (block types: float32).
TensorView mean_of(std::span<const TensorView> tensors);
/// MXFP4 as Hugging Face files hold it, codes u8 [.., G, 16] of pairs of neighbours and scales u8
/// [.., G], as blocks of GGUF: [.., 32 G].
TensorView mxfp4_of(const TensorView& codes, const TensorView& scales);
/// The inverse: codes and scales.
std::vector<TensorView> mxfp4_parts(const TensorView& tensor);
/// Ternary codes as Hugging Face files of BitNet hold them, u8 [O / 4, I] with four rows of O / 4
/// in the bits of a byte, and their factor [1], or with `inverse` one over it: [O, I] in the
/// smallest type that holds them (kernels::ternary_type()).
TensorView ternary_of(const TensorView& codes, const TensorView& scale, bool inverse);
/// The inverse: codes, and the factor as `dtype` where that holds it exactly, else as float32.
std::vector<TensorView> ternary_parts(const TensorView& tensor, bool inverse, DType dtype);
/// A matrix [O, I] as its mean magnitude times -1, 0 and 1, in float32.
TensorView ternary_rounded(const TensorView& tensor);
/// These numbers stored as a type (block types: float32).
TensorView from_doubles(std::string name,
                        DType dtype,
                        const Shape& shape,
                        std::span<const double> values);
/// Equal shapes and values.
bool equal_values(const TensorView& a, const TensorView& b);

/// The row order that takes rotary rows of `heads` heads from halves (0 .. r/2, r/2 .. r) to pairs
/// (0, r/2, 1, r/2 + 1, ...); rows of a head beyond `rotary` stay. Inverted: from pairs to halves.
std::vector<int64_t> rotary_row_order(int64_t rows, int64_t heads, int64_t rotary, bool inverted);
/// The row order in which the halves of the rotary rows of every head change places, so that pairs
/// turn the other way; its own inverse.
std::vector<int64_t> swapped_row_order(int64_t rows, int64_t heads, int64_t rotary);

}  // namespace tessera::convert
