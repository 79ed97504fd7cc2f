#include "tessera/convert/tensor_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/format/file_source.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/ternary.h"

namespace tessera::convert {
namespace {

template <class... Args>
[[noreturn]] void refuse(const TensorView& tensor,
                         fmt::format_string<Args...> format,
                         Args&&... args) {
  fail(ErrorKind::file, "convert", "tensor {} {}", format::in_quotes(tensor.name),
       fmt::format(format, std::forward<Args>(args)...));
}

struct Buffer {
  std::shared_ptr<std::vector<std::byte>> bytes;
  TensorView view;
};

Buffer allocate(const TensorView& like, DType dtype, Shape shape) {
  Buffer buffer;
  const int64_t size = storage_bytes(dtype, format::element_count(shape));
  buffer.bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(size));
  buffer.view = {like.name, dtype, std::move(shape), *buffer.bytes, buffer.bytes};
  return buffer;
}

/// A tensor as [outer, axis, inner], in units that can be moved: elements, or blocks along the last
/// axis.
struct Strips {
  int64_t outer = 1;
  int64_t count = 0;          // units along the axis
  int64_t unit_elements = 1;  // elements along the axis per unit
  int64_t inner_bytes = 0;    // of one unit
};

Strips strips_of(const TensorView& tensor, int64_t axis) {
  const auto rank = static_cast<int64_t>(tensor.shape.size());
  if (axis < 0 || axis >= rank) refuse(tensor, "has {} axes; there is no axis {}", rank, axis);
  const DTypeLayout& layout = layout_of(tensor.dtype);
  Strips strips;
  strips.outer = format::element_count(std::span(tensor.shape).first(static_cast<size_t>(axis)));
  strips.count = tensor.shape[static_cast<size_t>(axis)];
  if (axis == rank - 1) {
    strips.unit_elements = layout.block_elements;
    if (strips.count % layout.block_elements != 0)
      refuse(tensor, "has rows of {} elements, no whole blocks of {}", strips.count, layout.name);
    strips.count /= layout.block_elements;
    strips.inner_bytes = layout.block_bytes;
  } else {
    strips.inner_bytes = storage_bytes(
        tensor.dtype,
        format::element_count(std::span(tensor.shape).subspan(static_cast<size_t>(axis) + 1)));
  }
  return strips;
}

double wide_element(const TensorView& tensor, int64_t i) {
  const std::byte* at = tensor.data.data();
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, at + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  };
  switch (tensor.dtype) {
    case DType::f32:
      return read(0.0f);
    case DType::f64:
      return read(0.0);
    case DType::bf16:
      return bf16_to_float(read(uint16_t{0}));
    case DType::f16:
      return f16_to_float(read(uint16_t{0}));
    default:
      return 0;
  }
}

float element(const TensorView& tensor, int64_t i) {
  return static_cast<float>(wide_element(tensor, i));
}

/// The axis of the rows of matrices; only block types have an order of columns.
size_t row_axis(const TensorView& tensor) {
  return tensor.shape.size() - 2;
}

bool same_columns(const TensorView& a, const TensorView& b) {
  return a.columns == b.columns ||
         (a.columns != nullptr && b.columns != nullptr && *a.columns == *b.columns);
}

/// The orders of all matrices of `tensors`, one after the other; null where none has one.
format::ColumnOrder columns_of(std::span<const TensorView> tensors) {
  if (std::none_of(tensors.begin(), tensors.end(),
                   [](const TensorView& t) { return t.columns != nullptr; }))
    return nullptr;
  std::vector<int32_t> all;
  for (const TensorView& t : tensors) {
    if (t.columns != nullptr) {
      all.insert(all.end(), t.columns->begin(), t.columns->end());
      continue;
    }
    const int64_t width = t.shape.back(),
                  matrices = format::element_count(std::span(t.shape).first(row_axis(t)));
    for (int64_t i = 0; i < matrices * width; ++i) all.push_back(static_cast<int32_t>(i % width));
  }
  return std::make_shared<const std::vector<int32_t>>(std::move(all));
}

void require_float(const TensorView& tensor) {
  if (!layout_of(tensor.dtype).is_float)
    refuse(tensor, "has type {}; expected a floating-point type", name_of(tensor.dtype));
}

}  // namespace

TensorView reshaped(const TensorView& tensor, const Shape& shape) {
  const auto count = format::checked_element_count(shape);
  if (!count || *count != format::element_count(tensor.shape))
    refuse(tensor, "has shape {}; expected as many elements as {}",
           format::shape_text(tensor.shape), format::shape_text(shape));
  if (is_block_type(tensor.dtype) && (shape.empty() || tensor.shape.empty() ||
                                      shape.back() % layout_of(tensor.dtype).block_elements != 0))
    refuse(tensor, "of type {} cannot take the shape {}: its rows are no whole blocks",
           name_of(tensor.dtype), format::shape_text(shape));
  // the same matrices
  if (tensor.columns != nullptr && (shape.size() < 2 || shape.back() != tensor.shape.back() ||
                                    shape[shape.size() - 2] != tensor.shape[row_axis(tensor)]))
    return reshaped(as_float32(tensor), shape);
  TensorView view = tensor;
  view.shape = shape;
  return view;
}

std::vector<TensorView> split(const TensorView& tensor,
                              int64_t axis,
                              std::span<const int64_t> sizes) {
  const Strips strips = strips_of(tensor, axis);
  int64_t total = 0;
  for (const int64_t size : sizes)
    if (size < 0 || __builtin_add_overflow(total, size, &total))
      refuse(tensor, "cannot be split into parts of {}", format::shape_text(sizes));
  if (total != tensor.shape[static_cast<size_t>(axis)])
    refuse(tensor, "has shape {}; expected {} = {} along axis {}", format::shape_text(tensor.shape),
           format::shape_text(sizes), total, axis);
  // rows of a matrix, or matrices that lie one after the other
  const auto a = static_cast<size_t>(axis);
  if (tensor.columns != nullptr &&
      (a > row_axis(tensor) || (a < row_axis(tensor) && strips.outer != 1)))
    return split(as_float32(tensor), axis, sizes);
  const auto columns_of_part = [&](int64_t first, int64_t size) -> format::ColumnOrder {
    if (tensor.columns == nullptr || a == row_axis(tensor)) return tensor.columns;
    const int64_t each = std::ssize(*tensor.columns) / std::max<int64_t>(1, tensor.shape[a]);
    const auto from = tensor.columns->begin() + first * each;
    return std::make_shared<const std::vector<int32_t>>(from, from + size * each);
  };
  std::vector<TensorView> parts;
  int64_t begin = 0;  // units
  for (const int64_t size : sizes) {
    if (size % strips.unit_elements != 0)
      refuse(tensor, "of type {} cannot be cut at {}: no whole blocks", name_of(tensor.dtype),
             size);
    const int64_t units = size / strips.unit_elements;
    Shape shape = tensor.shape;
    shape[static_cast<size_t>(axis)] = size;
    const auto bytes = static_cast<size_t>(units * strips.inner_bytes),
               offset = static_cast<size_t>(begin * strips.inner_bytes);
    if (strips.outer == 1) {
      parts.push_back({tensor.name, tensor.dtype, std::move(shape),
                       tensor.data.subspan(offset, bytes), tensor.owner,
                       columns_of_part(begin, units)});
    } else {
      Buffer part = allocate(tensor, tensor.dtype, std::move(shape));
      const auto stride = static_cast<size_t>(strips.count * strips.inner_bytes);
      for (size_t o = 0; bytes > 0 && o < static_cast<size_t>(strips.outer); ++o)
        std::memcpy(part.bytes->data() + o * bytes, tensor.data.data() + o * stride + offset,
                    bytes);
      part.view.columns = columns_of_part(begin, units);
      parts.push_back(part.view);
    }
    begin += units;
  }
  return parts;
}

TensorView joined(std::span<const TensorView> tensors, int64_t axis) {
  if (tensors.empty()) fail(ErrorKind::spec, "convert", "nothing to join");
  const TensorView& first = tensors.front();
  if (tensors.size() == 1) return first;
  std::vector<TensorView> parts(tensors.begin(), tensors.end());
  const auto a = static_cast<size_t>(axis);
  Shape shape = first.shape;
  const int64_t outer = strips_of(first, axis).outer;
  const bool matrices = shape.size() > 2 && a < row_axis(first) && outer == 1;
  if (std::any_of(parts.begin(), parts.end(), [&](const TensorView& t) {
        return t.dtype != first.dtype ||
               (!matrices && !(a + 2 == shape.size() ? same_columns(t, first) : !t.columns));
      }))
    for (TensorView& part : parts) part = as_float32(part);
  shape[a] = 0;
  for (const TensorView& part : parts) {
    Shape other = part.shape;
    if (other.size() != shape.size())
      refuse(part, "has shape {}; expected {} axes", format::shape_text(part.shape), shape.size());
    shape[a] += std::exchange(other[a], shape[a]);
    other[a] = shape[a];
    if (other != shape)
      refuse(part, "has shape {}; expected the shape of {} but along axis {}",
             format::shape_text(part.shape), first.name, axis);
  }
  Buffer whole = allocate(first, parts.front().dtype, shape);
  const Strips target = strips_of(whole.view, axis);
  const auto stride = static_cast<size_t>(target.count * target.inner_bytes);
  size_t offset = 0;
  for (const TensorView& part : parts) {
    const Strips strips = strips_of(part, axis);
    const auto bytes = static_cast<size_t>(strips.count * strips.inner_bytes);
    for (size_t o = 0; bytes > 0 && o < static_cast<size_t>(strips.outer); ++o)
      std::memcpy(whole.bytes->data() + o * stride + offset, part.data.data() + o * bytes, bytes);
    offset += bytes;
  }
  whole.view.columns = matrices ? columns_of(parts) : parts.front().columns;
  return whole.view;
}

TensorView transposed(const TensorView& tensor, std::span<const int64_t> permutation) {
  const size_t rank = tensor.shape.size();
  std::vector<bool> seen(rank, false);
  bool valid = permutation.size() == rank;
  for (const int64_t axis : permutation) {
    valid =
        valid && axis >= 0 && axis < static_cast<int64_t>(rank) && !seen[static_cast<size_t>(axis)];
    if (valid) seen[static_cast<size_t>(axis)] = true;
  }
  if (!valid)
    refuse(tensor, "has {} axes; {} is no permutation of them", rank,
           format::shape_text(permutation));
  if (std::is_sorted(permutation.begin(), permutation.end())) return tensor;
  // where the last axis stays, rows move as they are stored
  const bool whole_rows = permutation.back() == static_cast<int64_t>(rank) - 1;
  if (is_block_type(tensor.dtype) && (!whole_rows || tensor.columns != nullptr))
    return transposed(as_float32(tensor), permutation);

  const int64_t row_bytes = storage_bytes(tensor.dtype, tensor.shape.back());
  const auto size =
      static_cast<size_t>(whole_rows ? row_bytes : layout_of(tensor.dtype).block_bytes);
  std::vector<size_t> strides(rank, size);  // bytes
  if (rank > 1) strides[rank - 2] = static_cast<size_t>(row_bytes);
  for (size_t k = rank - 1; k-- > 1;)
    strides[k - 1] = strides[k] * static_cast<size_t>(tensor.shape[k]);
  Shape shape(rank);
  std::vector<size_t> steps(rank);
  for (size_t k = 0; k < rank; ++k) {
    shape[k] = tensor.shape[static_cast<size_t>(permutation[k])];
    steps[k] = strides[static_cast<size_t>(permutation[k])];
  }
  Buffer result = allocate(tensor, tensor.dtype, shape);
  const int64_t last = shape[rank - 1], count = whole_rows ? 1 : last;  // moves of a row
  const int64_t rows = last == 0 ? 0 : format::element_count(shape) / last;
  parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      size_t from = 0;
      int64_t rest = row;
      for (size_t k = rank - 1; k-- > 0;) {
        from += static_cast<size_t>(rest % shape[k]) * steps[k];
        rest /= shape[k];
      }
      std::byte* out = result.bytes->data() + static_cast<size_t>(row * count) * size;
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(out + static_cast<size_t>(i) * size,
                    tensor.data.data() + from + static_cast<size_t>(i) * steps[rank - 1], size);
    }
  });
  return result.view;
}

TensorView with_rows(const TensorView& tensor, std::span<const int64_t> order) {
  const Strips strips = strips_of(tensor, 0);
  if (strips.unit_elements != 1 || (tensor.columns != nullptr && row_axis(tensor) != 0))
    return with_rows(as_float32(tensor), order);
  if (strips.count != static_cast<int64_t>(order.size()))
    refuse(tensor, "has {} rows; expected {}", strips.count, order.size());
  Buffer result = allocate(tensor, tensor.dtype, tensor.shape);
  const auto bytes = static_cast<size_t>(strips.inner_bytes);
  for (size_t r = 0; bytes > 0 && r < order.size(); ++r)
    std::memcpy(result.bytes->data() + r * bytes,
                tensor.data.data() + static_cast<size_t>(order[r]) * bytes, bytes);
  result.view.columns = tensor.columns;
  return result.view;
}

TensorView mapped(const TensorView& tensor, const std::function<float(float)>& function) {
  const TensorView source = is_block_type(tensor.dtype) ? as_float32(tensor) : tensor;
  require_float(source);
  Buffer result = allocate(tensor, DType::f32, tensor.shape);
  const int64_t n = format::element_count(tensor.shape);
  for (int64_t i = 0; i < n; ++i) {
    const float value = function(element(source, i));
    std::memcpy(result.bytes->data() + static_cast<size_t>(i) * sizeof(float), &value,
                sizeof(float));
  }
  return result.view;
}

namespace {

/// The numbers of a tensor whose columns lie in another order, in theirs.
void put_ordered(const TensorView& tensor, float* to) {
  const int64_t width = tensor.shape.back(), of_matrix = tensor.shape[row_axis(tensor)],
                row_bytes = storage_bytes(tensor.dtype, width);
  const int64_t rows = width == 0 ? 0 : format::element_count(tensor.shape) / width;
  parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t r = begin; r < end; ++r) {
      kernels::dequantize(tensor.dtype, tensor.data.data() + r * row_bytes, width, row.data());
      const int32_t* columns = tensor.columns->data() + r / of_matrix * width;
      for (int64_t c = 0; c < width; ++c) to[r * width + columns[c]] = row[static_cast<size_t>(c)];
    }
  });
}

}  // namespace

TensorView as_float32(const TensorView& tensor) {
  if (tensor.dtype == DType::f32) return tensor;
  if (is_block_type(tensor.dtype)) {
    Buffer result = allocate(tensor, DType::f32, tensor.shape);
    const DTypeLayout& layout = layout_of(tensor.dtype);
    const int64_t blocks = format::element_count(tensor.shape) / layout.block_elements;
    if (tensor.columns != nullptr) {
      put_ordered(tensor, reinterpret_cast<float*>(result.bytes->data()));
      return result.view;
    }
    parallel_for(blocks, 1024, [&](int64_t begin, int64_t end) {
      auto* out = reinterpret_cast<float*>(result.bytes->data()) + begin * layout.block_elements;
      kernels::dequantize(tensor.dtype, tensor.data.data() + begin * layout.block_bytes,
                          (end - begin) * layout.block_elements, out);
    });
    return result.view;
  }
  return mapped(tensor, [](float value) { return value; });
}

namespace {

constexpr int64_t kExactInteger = int64_t{1} << 24;  // up to which float32 holds all of them

template <class T>
int64_t integer_at(const TensorView& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.data.data() + static_cast<size_t>(i) * sizeof value, sizeof value);
  return value;
}

}  // namespace

TensorView integers_as_float32(const TensorView& tensor) {
  if (tensor.dtype != DType::i64 && tensor.dtype != DType::i32) return as_float32(tensor);
  Buffer result = allocate(tensor, DType::f32, tensor.shape);
  const int64_t n = format::element_count(tensor.shape);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t integer = tensor.dtype == DType::i64 ? integer_at<int64_t>(tensor, i)
                                                       : integer_at<int32_t>(tensor, i);
    if (integer < -kExactInteger || integer > kExactInteger)
      refuse(tensor, "holds {}; expected integers of at most {}", integer, kExactInteger);
    const auto value = static_cast<float>(integer);
    std::memcpy(result.bytes->data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
  }
  return result.view;
}

TensorView as_integers(const TensorView& tensor) {
  const TensorView source = as_float32(tensor);
  Buffer result = allocate(tensor, DType::i64, tensor.shape);
  const int64_t n = format::element_count(tensor.shape);
  for (int64_t i = 0; i < n; ++i) {
    const float number = element(source, i);
    if (!(std::abs(number) <= static_cast<float>(kExactInteger)) ||
        std::nearbyint(number) != number)
      refuse(tensor, "holds {}; expected whole numbers", number);
    const auto value = static_cast<int64_t>(number);
    std::memcpy(result.bytes->data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
  }
  return result.view;
}

TensorView as_plain_float(const TensorView& tensor) {
  return tensor.dtype == DType::f64 || is_block_type(tensor.dtype) ? as_float32(tensor) : tensor;
}

TensorView with_padding(const TensorView& tensor, int64_t count, double value) {
  if (tensor.shape.empty() || count < 0) refuse(tensor, "cannot be padded by {} rows", count);
  TensorView rows = tensor;
  rows.shape[0] = count;
  if (is_block_type(tensor.dtype)) return with_padding(as_float32(tensor), count, value);
  Buffer padding = allocate(tensor, DType::f32, rows.shape);
  const auto fill = static_cast<float>(value);
  for (size_t at = 0; at < padding.bytes->size(); at += sizeof(float))
    std::memcpy(padding.bytes->data() + at, &fill, sizeof(float));
  return joined(std::array{tensor, padding.view}, 0);
}

TensorView mean_of(std::span<const TensorView> tensors) {
  if (tensors.empty()) fail(ErrorKind::internal, "convert", "the mean of nothing");
  const TensorView& first = tensors.front();
  if (tensors.size() == 1) return first;
  std::vector<double> sum(static_cast<size_t>(format::element_count(first.shape)));
  for (const TensorView& tensor : tensors) {
    if (tensor.shape != first.shape)
      refuse(tensor, "has shape {}; expected {}", format::shape_text(tensor.shape),
             format::shape_text(first.shape));
    const TensorView plain = is_block_type(tensor.dtype) ? as_float32(tensor) : tensor;
    require_float(plain);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += wide_element(plain, static_cast<int64_t>(i));
  }
  for (double& value : sum) value /= static_cast<double>(tensors.size());
  return from_doubles(first.name, first.dtype, first.shape, sum);
}

namespace {

constexpr int64_t kMxHalf = 16;  // bytes of codes of a block, which follow its scale in GGUF

/// Code i of 32: neighbours share a byte in Hugging Face files, halves of a block do in GGUF.
uint8_t code_of(const std::byte* codes, int64_t i, bool neighbours) {
  const auto byte = static_cast<uint8_t>(codes[neighbours ? i / 2 : i % kMxHalf]);
  return (neighbours ? i % 2 : i / kMxHalf) == 0 ? byte & 15 : byte >> 4;
}

void repack(const std::byte* from, std::byte* to, bool to_neighbours) {
  for (int64_t b = 0; b < kMxHalf; ++b) {
    const int64_t low = to_neighbours ? 2 * b : b, high = to_neighbours ? low + 1 : b + kMxHalf;
    to[b] = static_cast<std::byte>(code_of(from, low, !to_neighbours) |
                                   code_of(from, high, !to_neighbours) << 4);
  }
}

}  // namespace

TensorView mxfp4_of(const TensorView& codes, const TensorView& scales) {
  if (codes.dtype != DType::u8 || codes.shape.empty() || codes.shape.back() != kMxHalf)
    refuse(codes, "of type {} has shape {}; expected u8 and {} bytes a block", name_of(codes.dtype),
           format::shape_text(codes.shape), kMxHalf);
  Shape shape = codes.shape;
  shape.pop_back();
  if (scales.dtype != DType::u8 || scales.shape != shape || shape.empty())
    refuse(scales, "of type {} has shape {}; expected u8 and {}", name_of(scales.dtype),
           format::shape_text(scales.shape), format::shape_text(shape));
  shape.back() *= layout_of(DType::mxfp4).block_elements;
  Buffer result = allocate(codes, DType::mxfp4, shape);
  for (int64_t block = 0; block < std::ssize(scales.data); ++block) {
    std::byte* to = result.bytes->data() + block * (kMxHalf + 1);
    to[0] = scales.data[static_cast<size_t>(block)];
    repack(codes.data.data() + block * kMxHalf, to + 1, false);
  }
  return result.view;
}

std::vector<TensorView> mxfp4_parts(const TensorView& tensor) {
  if (tensor.dtype != DType::mxfp4)
    refuse(tensor, "has type {}; expected mxfp4", name_of(tensor.dtype));
  Shape shape = tensor.shape;
  shape.back() /= layout_of(DType::mxfp4).block_elements;
  Buffer scales = allocate(tensor, DType::u8, shape);
  shape.push_back(kMxHalf);
  Buffer codes = allocate(tensor, DType::u8, shape);
  for (int64_t block = 0; block < std::ssize(*scales.bytes); ++block) {
    const std::byte* from = tensor.data.data() + block * (kMxHalf + 1);
    (*scales.bytes)[static_cast<size_t>(block)] = from[0];
    repack(from + 1, codes.bytes->data() + block * kMxHalf, true);
  }
  return {codes.view, scales.view};
}

namespace {

constexpr int64_t kPackedRows = 4;  // rows of ternary codes in a byte

}  // namespace

TensorView ternary_of(const TensorView& codes, const TensorView& scale, bool inverse) {
  if (codes.dtype != DType::u8 || codes.shape.size() != 2)
    refuse(codes, "of type {} has shape {}; expected u8, four rows of ternary codes in a byte",
           name_of(codes.dtype), format::shape_text(codes.shape));
  if (format::element_count(scale.shape) != 1)
    refuse(scale, "has shape {}; expected one factor of the matrix",
           format::shape_text(scale.shape));
  require_float(scale);
  const float given = element(scale, 0), d = inverse ? 1.0f / given : given;
  const int64_t rows = codes.shape[0], columns = codes.shape[1], packed = rows * columns;
  const float factors[] = {d};
  std::vector<uint8_t> all(static_cast<size_t>(kPackedRows * packed));
  for (int64_t part = 0; part < kPackedRows; ++part)
    for (int64_t i = 0; i < packed; ++i) {
      const int code = static_cast<int>(codes.data[static_cast<size_t>(i)]) >> (2 * part) & 3;
      if (code > 2) refuse(codes, "has the code 3; expected 0 to 2 for -1, 0 and 1");
      all[static_cast<size_t>(part * packed + i)] = static_cast<uint8_t>(code);
    }
  const DType type = kernels::ternary_type(columns, factors);
  Buffer result = allocate(codes, type, {kPackedRows * rows, columns});
  kernels::put_ternary(type, all.data(), std::ssize(all), d, result.bytes->data());
  return result.view;
}

std::vector<TensorView> ternary_parts(const TensorView& tensor, bool inverse, DType dtype) {
  const TensorView numbers = as_float32(tensor);
  if (tensor.shape.size() != 2 || tensor.shape[0] % kPackedRows != 0)
    refuse(tensor, "has shape {}; expected a matrix with a multiple of {} rows",
           format::shape_text(tensor.shape), kPackedRows);
  const int64_t n = format::element_count(tensor.shape), packed = n / kPackedRows;
  std::vector<float> values(static_cast<size_t>(n));
  std::memcpy(values.data(), numbers.data.data(), numbers.data.size());
  std::vector<uint8_t> codes(static_cast<size_t>(n));
  float d = 0;
  if (!kernels::read_ternary(values.data(), n, codes.data(), d))
    refuse(tensor, "is not ternary; expected one number times -1, 0 and 1");
  Buffer bytes = allocate(tensor, DType::u8, {tensor.shape[0] / kPackedRows, tensor.shape[1]});
  for (int64_t i = 0; i < packed; ++i) {
    int byte = 0;
    for (int64_t part = 0; part < kPackedRows; ++part)
      byte |= codes[static_cast<size_t>(part * packed + i)] << (2 * part);
    (*bytes.bytes)[static_cast<size_t>(i)] = static_cast<std::byte>(byte);
  }
  const auto scale_as = [&](DType type) {
    const double factor = inverse ? static_cast<double>(1.0f / d) : static_cast<double>(d);
    return from_doubles(tensor.name, type, {1}, std::array{factor});
  };
  TensorView scale = scale_as(dtype);
  const float kept = element(scale, 0);
  if ((inverse ? 1.0f / kept : kept) != d) scale = scale_as(DType::f32);
  return {bytes.view, scale};
}

TensorView ternary_rounded(const TensorView& tensor) {
  const TensorView numbers = as_float32(tensor);
  const int64_t n = format::element_count(tensor.shape);
  std::vector<float> values(static_cast<size_t>(n));
  std::memcpy(values.data(), numbers.data.data(), numbers.data.size());
  Buffer result = allocate(tensor, DType::f32, tensor.shape);
  std::vector<float> rounded(values.size());
  const float mean = kernels::absmean(values.data(), n);
  if (!std::isfinite(mean))
    refuse(tensor, "holds a number that is not finite; expected finite ones");
  kernels::ternary_values(values.data(), n, mean, rounded.data());
  std::memcpy(result.bytes->data(), rounded.data(), result.bytes->size());
  return result.view;
}

TensorView from_doubles(std::string name,
                        DType dtype,
                        const Shape& shape,
                        std::span<const double> values) {
  if (is_block_type(dtype)) dtype = DType::f32;
  TensorView like;
  like.name = std::move(name);
  like.dtype = dtype;
  require_float(like);
  Buffer result = allocate(like, dtype, shape);
  const auto write = [&](size_t i, auto value) {
    std::memcpy(result.bytes->data() + i * sizeof value, &value, sizeof value);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    if (dtype == DType::f64)
      write(i, values[i]);
    else if (dtype == DType::bf16)
      write(i, float_to_bf16(single));
    else if (dtype == DType::f16)
      write(i, float_to_f16(single));
    else
      write(i, single);
  }
  return result.view;
}

bool equal_values(const TensorView& a, const TensorView& b) {
  if (a.shape != b.shape) return false;
  if (a.dtype == b.dtype && same_columns(a, b) && a.data.size() == b.data.size() &&
      std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0)
    return true;
  if (is_block_type(a.dtype) || is_block_type(b.dtype))
    return equal_values(as_float32(a), as_float32(b));
  require_float(a);
  require_float(b);
  const int64_t n = format::element_count(a.shape);
  for (int64_t i = 0; i < n; ++i)
    if (!(element(a, i) == element(b, i))) return false;
  return true;
}

namespace {

void require_rotary_rows(int64_t rows, int64_t heads, int64_t rotary) {
  if (heads < 1 || rows % heads != 0 || rotary < 0 || rotary % 2 != 0 || rotary > rows / heads)
    fail(
        ErrorKind::file, "convert",
        "{} rotary rows in each of {} heads of {} rows together; expected an even number that fits",
        rotary, heads, rows);
}

}  // namespace

std::vector<int64_t> swapped_row_order(int64_t rows, int64_t heads, int64_t rotary) {
  require_rotary_rows(rows, heads, rotary);
  const int64_t width = rows / heads, half = rotary / 2;
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t m = 0; m < half; ++m)
      std::swap(order[static_cast<size_t>(h * width + m)],
                order[static_cast<size_t>(h * width + half + m)]);
  return order;
}

std::vector<int64_t> rotary_row_order(int64_t rows, int64_t heads, int64_t rotary, bool inverted) {
  require_rotary_rows(rows, heads, rotary);
  const int64_t width = rows / heads, half = rotary / 2;
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t m = 0; m < half; ++m)
      for (int64_t side = 0; side < 2; ++side) {
        const int64_t in_halves = h * width + side * half + m, in_pairs = h * width + 2 * m + side;
        order[static_cast<size_t>(inverted ? in_halves : in_pairs)] =
            inverted ? in_pairs : in_halves;
      }
  return order;
}

}  // namespace tessera::convert
