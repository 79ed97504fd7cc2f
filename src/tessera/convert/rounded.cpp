#include "tessera/convert/rounded.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

constexpr size_t kNumbersAtOnce = size_t{1} << 16;

std::span<const float> float_span_of(const TensorView& tensor) {
  return {reinterpret_cast<const float*>(tensor.data.data()), tensor.data.size() / sizeof(float)};
}

}  // namespace

double RoundingError::relative() const {
  return squares > 0 ? std::sqrt(errors / squares) : 0;
}

TensorView rounded_to(const TensorView& tensor, DType dtype, RoundingError& error) {
  const bool numbers = layout_of(tensor.dtype).is_float || is_block_type(tensor.dtype);
  if (!numbers || tensor.dtype == dtype) return tensor;
  const TensorView wide = as_float32(tensor);
  if (dtype == DType::f32) return wide;
  const auto count = static_cast<size_t>(format::element_count(wide.shape));
  const auto width = static_cast<size_t>(storage_bytes(dtype, 1));
  auto bytes = std::make_shared<std::vector<std::byte>>(count * width);
  for (size_t at = 0; at < count; at += kNumbersAtOnce) {
    const size_t n = std::min(kNumbersAtOnce, count - at);
    // a view may lie at any address
    std::vector<float> part(n);
    std::memcpy(part.data(), wide.data.data() + at * sizeof(float), n * sizeof(float));
    const std::vector<double> values(part.begin(), part.end());
    const TensorView narrow = from_doubles("", dtype, {static_cast<int64_t>(n)}, values);
    std::memcpy(bytes->data() + at * width, narrow.data.data(), n * width);
    const TensorView back = as_float32(narrow);
    const auto rounded = float_span_of(back);
    for (size_t i = 0; i < n; ++i) {
      if (!std::isfinite(values[i])) continue;
      if (!std::isfinite(rounded[i]))
        fail(ErrorKind::usage, "dtype",
             "tensor {} holds {}, which {} cannot hold; expected bfloat16 or float32",
             format::in_quotes(tensor.name), values[i], name_of(dtype));
      const double off = values[i] - static_cast<double>(rounded[i]);
      error.squares += values[i] * values[i];
      error.errors += off * off;
    }
  }
  return {tensor.name, dtype, tensor.shape, *bytes, bytes};
}

}  // namespace tessera::convert
