#include "tessera/convert/rounded.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/quantize.h"

namespace tessera::convert {
namespace {

constexpr size_t kNumbersAtOnce = size_t{1} << 16;

std::span<const float> float_span_of(const TensorView& tensor) {
  return {reinterpret_cast<const float*>(tensor.data.data()), tensor.data.size() / sizeof(float)};
}

bool holds_numbers(const TensorView& tensor) {
  return layout_of(tensor.dtype).is_float || is_block_type(tensor.dtype);
}

/// Calls `body` with the index of the first number and the numbers of each part of a float32
/// tensor, which may lie at any address.
template <class Body>
void for_each_part(const TensorView& wide, const Body& body) {
  const auto count = static_cast<size_t>(format::element_count(wide.shape));
  std::vector<float> part;
  for (size_t at = 0; at < count; at += kNumbersAtOnce) {
    part.resize(std::min(kNumbersAtOnce, count - at));
    std::memcpy(part.data(), wide.data.data() + at * sizeof(float), part.size() * sizeof(float));
    body(at, std::span<const float>(part));
  }
}

}  // namespace

void WeightError::add(double exact, double written) {
  const double off = exact - written;
  ++numbers;
  squares += exact * exact;
  errors += off * off;
  largest = std::max(largest, std::abs(off));
}

void WeightError::add(const WeightError& other) {
  numbers += other.numbers;
  squares += other.squares;
  errors += other.errors;
  largest = std::max(largest, other.largest);
}

double WeightError::relative() const {
  return squares > 0 ? std::sqrt(errors / squares) : 0;
}

TensorView rounded_to(const TensorView& tensor, DType dtype) {
  if (!holds_numbers(tensor) || tensor.dtype == dtype) return tensor;
  const TensorView wide = as_float32(tensor);
  if (dtype == DType::f32) return wide;
  const auto count = static_cast<size_t>(format::element_count(wide.shape));
  const auto width = static_cast<size_t>(storage_bytes(dtype, 1));
  auto bytes = std::make_shared<std::vector<std::byte>>(count * width);
  for_each_part(wide, [&](size_t at, std::span<const float> part) {
    const std::vector<double> values(part.begin(), part.end());
    const TensorView narrow = from_doubles("", dtype, {static_cast<int64_t>(part.size())}, values);
    std::memcpy(bytes->data() + at * width, narrow.data.data(), part.size() * width);
    const TensorView back = as_float32(narrow);
    const auto rounded = float_span_of(back);
    for (size_t i = 0; i < part.size(); ++i)
      if (std::isfinite(values[i]) && !std::isfinite(rounded[i]))
        fail(ErrorKind::usage, "dtype",
             "tensor {} holds {}, which {} cannot hold; expected bfloat16 or float32",
             format::in_quotes(tensor.name), values[i], name_of(dtype));
  });
  return {tensor.name, dtype, tensor.shape, *bytes, bytes};
}

bool ternary_holds(DType type, const TensorView& matrix) {
  if ((type != DType::tq1_0 && type != DType::tq2_0) || !holds_numbers(matrix)) return false;
  const int64_t count = format::element_count(matrix.shape),
                elements = layout_of(type).block_elements;
  if (count % elements != 0) return false;
  std::vector<float> exact, held;
  std::vector<std::byte> blocks;
  for (int64_t at = 0, n; at < count; at += n) {
    n = std::min<int64_t>(kNumbersAtOnce, count - at);
    exact.resize(static_cast<size_t>(n));
    held.resize(static_cast<size_t>(n));
    blocks.resize(static_cast<size_t>(storage_bytes(type, n)));
    kernels::dequantize(matrix.dtype, matrix.data.data() + storage_bytes(matrix.dtype, at), n,
                        exact.data());
    kernels::quantize(type, exact.data(), n, blocks.data());
    kernels::dequantize(type, blocks.data(), n, held.data());
    if (exact != held) return false;
  }
  return true;
}

std::string widened_line(std::span<const TensorView> tensors,
                         const std::function<bool(const TensorView&)>& stays) {
  constexpr double kMiB = 1 << 20;
  double bytes = 0, wide = 0;
  for (const TensorView& tensor : tensors)
    if (is_block_type(tensor.dtype) && !stays(tensor)) {
      bytes += static_cast<double>(tensor.data.size());
      wide += static_cast<double>(format::element_count(tensor.shape)) * sizeof(float);
    }
  return wide == 0 ? ""
                   : fmt::format(
                         "quantized matrices are written as float32: {:.1f} MiB instead of {:.1f}",
                         wide / kMiB, bytes / kMiB);
}

WeightError error_of(const TensorView& written, const TensorView& exact) {
  WeightError error;
  if (!holds_numbers(written) || !holds_numbers(exact)) return error;
  const TensorView wide = as_float32(written);
  for_each_part(as_float32(exact), [&](size_t at, std::span<const float> part) {
    std::vector<float> other(part.size());
    std::memcpy(other.data(), wide.data.data() + at * sizeof(float), part.size_bytes());
    for (size_t i = 0; i < part.size(); ++i)
      if (std::isfinite(part[i]) && std::isfinite(other[i])) error.add(part[i], other[i]);
  });
  return error;
}

}  // namespace tessera::convert
