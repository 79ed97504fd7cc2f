#include "tessera/ops/light_tensor.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/SymIntArrayRef.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "tessera/base/threads.h"

namespace tessera::ops {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kGrain = 1 << 16;         // elements that a thread copies at least
constexpr int64_t kMostComputed = 1 << 20;  // elements; by one thread, 1 ms

c10::intrusive_ptr<c10::StorageImpl> storage_of(int64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::GetCPUAllocator(), /*resizable=*/true);
}

Tensor tensor_in(c10::intrusive_ptr<c10::StorageImpl> storage, at::ScalarType type) {
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                  c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                  c10::scalarTypeToTypeMeta(type));
}

/// Elements of a shape; nothing where a size is negative or memory could not hold them.
std::optional<int64_t> elements_of(at::IntArrayRef shape) {
  int64_t n = 1;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(n, size, &n)) return std::nullopt;
  return n < (int64_t{1} << 56) ? std::optional(n) : std::nullopt;
}

/// Whether x has nothing but its memory, shape and strides.
bool is_plain(const Tensor& x) {
  constexpr auto kCpu = c10::BackendComponent::CPUBit;
  const c10::DispatchKeySet plain = c10::DispatchKeySet(c10::DispatchKey::CPU) |
                                    c10::getAutogradRelatedKeySetFromBackend(kCpu) |
                                    c10::getAutocastRelatedKeySetFromBackend(kCpu);
  return x.defined() && x.has_storage() && x.device().is_cpu() && !x.requires_grad() &&
         (x.key_set() | plain) == plain;
}

/// A view of x, as far as inference reads it: libtorch notes further what gradients of views need.
Tensor view_of(const Tensor& x, at::IntArrayRef shape, at::IntArrayRef strides, int64_t offset) {
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(x.storage()), x.key_set(), x.dtype());
  c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(shape, strides, offset);
  if (!x.is_inference()) impl->set_version_counter(x.unsafeGetTensorImpl()->version_counter());
  return view;
}

/// An axis in [0, axes); nothing for one out of range.
std::optional<int64_t> axis_in(int64_t axis, int64_t axes) {
  if (axis < -axes || axis >= axes) return std::nullopt;
  return axis < 0 ? axis + axes : axis;
}

/// Memory like x's: of its strides where they leave no gaps (torch.preserve_format), or contiguous.
std::optional<Tensor> memory_like(const Tensor& x,
                                  at::ScalarType type,
                                  const std::optional<at::MemoryFormat>& format) {
  const auto layout = format.value_or(at::MemoryFormat::Preserve);
  const bool contiguous = layout == at::MemoryFormat::Contiguous;
  if (!is_plain(x) ||
      (!contiguous && (layout != at::MemoryFormat::Preserve || !x.is_non_overlapping_and_dense())))
    return std::nullopt;
  Tensor y = tensor_in(storage_of(x.numel() * static_cast<int64_t>(c10::elementSize(type))), type);
  if (contiguous)
    y.unsafeGetTensorImpl()->set_sizes_contiguous(x.sizes());
  else
    y.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides());
  return y;
}

/// The axes that two tensors are copied over, neighbours that lie alike in both merged.
struct Axes {
  Shape sizes, to, from;
};

Axes merged_axes(const Tensor& to, const Tensor& from) {
  Axes axes;
  const int64_t missing = to.dim() - from.dim();
  for (int64_t axis = 0; axis < to.dim(); ++axis) {
    const int64_t size = to.size(axis);
    if (size == 1) continue;
    const bool spread = axis < missing || from.size(axis - missing) == 1;
    const int64_t t = to.stride(axis), f = spread ? 0 : from.stride(axis - missing);
    if (!axes.sizes.empty() && axes.to.back() == t * size && axes.from.back() == f * size) {
      axes.sizes.back() *= size;
      axes.to.back() = t;
      axes.from.back() = f;
    } else {
      axes.sizes.push_back(size);
      axes.to.push_back(t);
      axes.from.push_back(f);
    }
  }
  if (axes.sizes.empty()) axes = {{1}, {1}, {1}};
  return axes;
}

template <class To, class From>
void copy_elements(const Axes& axes, To* to, const From* from) {
  constexpr bool same = std::is_same_v<To, From>;
  const auto share = [](int64_t n, int64_t grain, const auto& body) {
    // a number that is converted must stay as it is: parallel_for flushes denormal ones
    if (same)
      parallel_for(n, grain, body);
    else
      body(0, n);
  };
  const int64_t width = axes.sizes.back(), t = axes.to.back(), f = axes.from.back();
  const auto run = [&](To* y, const From* x, int64_t begin, int64_t end) {
    if (same && t == 1 && f == 1)
      std::memcpy(y + begin, x + begin, (end - begin) * sizeof(To));
    else
      for (int64_t i = begin; i < end; ++i) y[i * t] = static_cast<To>(x[i * f]);
  };
  const size_t outer = axes.sizes.size() - 1;
  const int64_t rows = std::accumulate(axes.sizes.begin(), axes.sizes.end() - 1, int64_t{1},
                                       std::multiplies<int64_t>());
  if (rows == 1) {
    share(width, kGrain, [&](int64_t begin, int64_t end) { run(to, from, begin, end); });
    return;
  }
  share(rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      To* y = to;
      const From* x = from;
      for (size_t axis = outer, rest = row; axis-- > 0;) {
        const int64_t i = static_cast<int64_t>(rest) % axes.sizes[axis];
        rest /= axes.sizes[axis];
        y += i * axes.to[axis];
        x += i * axes.from[axis];
      }
      run(y, x, 0, width);
    }
  });
}

template <class T>
T* memory_of(const Tensor& x) {
  return static_cast<T*>(x.unsafeGetTensorImpl()->mutable_data());
}

template <class T>
void copy_same(const Axes& axes, const Tensor& to, const Tensor& from) {
  copy_elements(axes, memory_of<T>(to), static_cast<const T*>(memory_of<void>(from)));
}

template <class To>
bool convert_to(const Axes& axes, const Tensor& to, const Tensor& from) {
  const auto convert = [&]<class From>(From) {
    copy_elements(axes, memory_of<To>(to), static_cast<const From*>(memory_of<void>(from)));
    return true;
  };
  constexpr bool whole = std::is_integral_v<To>;
  constexpr bool is_float = std::is_same_v<To, float>;
  const at::ScalarType type = from.scalar_type();
  if constexpr (sizeof(To) > 2) {
    if (type == at::kLong) return convert(int64_t());
    if (type == at::kInt) return convert(int32_t());
    // a number that a whole one cannot hold has another result on every processor
    if constexpr (!whole)
      if (type == at::kDouble) return convert(double());
  }
  if constexpr (is_float) {
    if (type == at::kHalf) return convert(at::Half());
    if (type == at::kBFloat16) return convert(at::BFloat16());
  }
  if constexpr (!whole)
    if (type == at::kFloat) return convert(float());
  return false;
}

/// Whether x is small enough to be computed by one thread. (parallel_for flushes denormal numbers.)
bool is_small(const Tensor& x) {
  return is_plain(x) && x.is_contiguous() && x.numel() <= kMostComputed;
}

template <class T, class Function>
Tensor mapped(const Tensor& x, const Function& f) {
  Tensor y = *memory_like(x, x.scalar_type(), at::MemoryFormat::Contiguous);
  T* const to = memory_of<T>(y);
  const T* const from = memory_of<T>(x);
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = f(from[i], i);
  return y;
}

/// Whether each element of x has memory of its own.
bool is_injective(const Tensor& x) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, size
  for (int64_t axis = 0; axis < x.dim(); ++axis)
    if (x.size(axis) != 1) axes.emplace_back(x.stride(axis), x.size(axis));
  std::sort(axes.begin(), axes.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : axes) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

bool spreads_to(const Tensor& from, const Tensor& to) {
  const int64_t missing = to.dim() - from.dim();
  if (missing < 0) return false;
  for (int64_t axis = 0; axis < from.dim(); ++axis)
    if (from.size(axis) != 1 && from.size(axis) != to.size(axis + missing)) return false;
  return true;
}

}  // namespace

Tensor tensor_over(const void* data,
                   at::IntArrayRef shape,
                   at::ScalarType type,
                   std::shared_ptr<const void> owner) {
  const std::optional<int64_t> elements = elements_of(shape);
  require(elements.has_value(), "tensor", "a shape [{}]", fmt::join(shape, ", "));
  void* const memory = const_cast<void*>(data);
  at::DataPtr pointer =
      owner == nullptr
          ? at::DataPtr(memory, at::kCPU)
          : at::DataPtr(
                memory, new std::shared_ptr<const void>(std::move(owner)),
                [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); },
                at::kCPU);
  Tensor x =
      tensor_in(c10::make_intrusive<c10::StorageImpl>(
                    c10::StorageImpl::use_byte_size_t(),
                    *elements * static_cast<int64_t>(c10::elementSize(type)), std::move(pointer),
                    /*allocator=*/nullptr, /*resizable=*/false),
                type);
  x.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return x;
}

namespace light {

MaybeTensor empty(c10::SymIntArrayRef shape,
                  Maybe<at::ScalarType> type,
                  Maybe<at::Layout> layout,
                  Maybe<at::Device> device,
                  Maybe<bool> pinned,
                  Maybe<at::MemoryFormat> format) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  const std::optional<int64_t> elements = sizes ? elements_of(*sizes) : std::nullopt;
  if (!elements || layout.value_or(at::kStrided) != at::kStrided ||
      !device.value_or(at::kCPU).is_cpu() || pinned.value_or(false) ||
      format.value_or(at::MemoryFormat::Contiguous) != at::MemoryFormat::Contiguous)
    return std::nullopt;
  const at::ScalarType stored = type.value_or(c10::get_default_dtype_as_scalartype());
  // libtorch warns of this one
  if (stored == at::kComplexHalf) return std::nullopt;
  Tensor x =
      tensor_in(storage_of(*elements * static_cast<int64_t>(c10::elementSize(stored))), stored);
  x.unsafeGetTensorImpl()->set_sizes_contiguous(*sizes);
  return x;
}

MaybeTensor empty_like(const Tensor& x,
                       Maybe<at::ScalarType> type,
                       Maybe<at::Layout> layout,
                       Maybe<at::Device> device,
                       Maybe<bool> pinned,
                       Maybe<at::MemoryFormat> format) {
  if (layout.value_or(at::kStrided) != at::kStrided || !device.value_or(at::kCPU).is_cpu() ||
      pinned.value_or(false))
    return std::nullopt;
  return memory_like(x, type.value_or(x.scalar_type()), format);
}

MaybeTensor tensor(at::ArrayRef<int64_t> values, const at::TensorOptions& options) {
  const auto n = static_cast<int64_t>(values.size());
  const Tensor whole = tensor_over(values.data(), n, at::kLong);
  if (options.requires_grad()) return std::nullopt;
  MaybeTensor x =
      empty(c10::SymIntArrayRef(c10::SymInt(n)), c10::typeMetaToScalarType(options.dtype()),
            options.layout_opt(), options.device_opt(), options.pinned_memory_opt(),
            options.memory_format_opt());
  return x && assign(*x, whole) ? x : std::nullopt;
}

MaybeTensor narrow(const Tensor& x,
                   int64_t axis,
                   const c10::SymInt& begin,
                   const c10::SymInt& length) {
  const auto first = begin.maybe_as_int(), count = length.maybe_as_int();
  if (!is_plain(x) || !first || !count) return std::nullopt;
  const auto along = axis_in(axis, x.dim());
  if (!along) return std::nullopt;
  const int64_t size = x.size(*along), from = *first < 0 ? *first + size : *first;
  if (from < 0 || *count < 0 || from > size || *count > size - from) return std::nullopt;
  Shape shape = x.sizes().vec();
  shape[*along] = *count;
  return view_of(x, shape, x.strides(), x.storage_offset() + from * x.stride(*along));
}

MaybeTensor select(const Tensor& x, int64_t axis, const c10::SymInt& index) {
  const auto place = index.maybe_as_int();
  if (!is_plain(x) || !place) return std::nullopt;
  const auto along = axis_in(axis, x.dim());
  const auto at = along ? axis_in(*place, x.size(*along)) : std::nullopt;
  if (!at) return std::nullopt;
  const int64_t offset = x.storage_offset() + *at * x.stride(*along);
  Shape shape = x.sizes().vec(), strides = x.strides().vec();
  shape.erase(shape.begin() + *along);
  strides.erase(strides.begin() + *along);
  return view_of(x, shape, strides, offset);
}

MaybeTensor unsqueeze(const Tensor& x, int64_t axis) {
  if (!is_plain(x)) return std::nullopt;
  const auto along = axis_in(axis, x.dim() + 1);
  if (!along) return std::nullopt;
  Shape shape = x.sizes().vec(), strides = x.strides().vec();
  const int64_t stride = *along == x.dim() ? 1 : shape[*along] * strides[*along];
  shape.insert(shape.begin() + *along, 1);
  strides.insert(strides.begin() + *along, stride);
  return view_of(x, shape, strides, x.storage_offset());
}

MaybeTensor reshape(const Tensor& x, c10::SymIntArrayRef shape) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  if (!is_plain(x) || !x.is_contiguous() || !sizes) return std::nullopt;
  Shape all = sizes->vec();
  const auto open = std::find(all.begin(), all.end(), -1);
  if (open != all.end()) {
    *open = 1;
    const int64_t rest = elements_of(all).value_or(0);
    if (rest == 0 || x.numel() % rest != 0) return std::nullopt;
    *open = x.numel() / rest;
  }
  if (elements_of(all) != x.numel()) return std::nullopt;
  Shape strides(all.size(), 1);
  for (size_t axis = all.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * std::max<int64_t>(all[axis], 1);
  return view_of(x, all, strides, x.storage_offset());
}

bool assign(const Tensor& to, const Tensor& from) {
  if (!is_plain(to) || !is_plain(from) || !spreads_to(from, to)) return false;
  if (to.is_same(from) || to.numel() == 0) return true;
  if (to.storage().is_alias_of(from.storage()) || !is_injective(to)) return false;
  const Axes axes = merged_axes(to, from);
  if (to.scalar_type() != from.scalar_type()) {
    if (to.numel() > kMostComputed) return false;
    switch (to.scalar_type()) {
      case at::kFloat:
        return convert_to<float>(axes, to, from);
      case at::kDouble:
        return convert_to<double>(axes, to, from);
      case at::kLong:
        return convert_to<int64_t>(axes, to, from);
      case at::kInt:
        return convert_to<int32_t>(axes, to, from);
      case at::kHalf:
        return convert_to<at::Half>(axes, to, from);
      case at::kBFloat16:
        return convert_to<at::BFloat16>(axes, to, from);
      default:
        return false;
    }
  }
  switch (to.itemsize()) {
    case 1:
      copy_same<uint8_t>(axes, to, from);
      return true;
    case 2:
      copy_same<uint16_t>(axes, to, from);
      return true;
    case 4:
      copy_same<uint32_t>(axes, to, from);
      return true;
    case 8:
      copy_same<uint64_t>(axes, to, from);
      return true;
    default:
      return false;
  }
}

MaybeTensor clone(const Tensor& x, Maybe<at::MemoryFormat> format) {
  if (!is_plain(x)) return std::nullopt;
  MaybeTensor y = memory_like(x, x.scalar_type(), format);
  return y && assign(*y, x) ? y : std::nullopt;
}

MaybeTensor to_type(const Tensor& x,
                    at::ScalarType type,
                    bool copied,
                    Maybe<at::MemoryFormat> format) {
  if (!is_plain(x) || format.value_or(at::MemoryFormat::Preserve) != at::MemoryFormat::Preserve)
    return std::nullopt;
  if (x.scalar_type() == type && !copied) return x;
  MaybeTensor y = memory_like(x, type, format);
  return y && assign(*y, x) ? y : std::nullopt;
}

MaybeTensor cat(const at::ITensorListRef& parts, int64_t axis) {
  if (parts.size() == 0) return std::nullopt;
  std::vector<Tensor> all;
  for (const Tensor& part : parts) all.push_back(part);
  const Tensor& first = all.front();
  if (!is_plain(first) || first.dim() == 0) return std::nullopt;
  const auto along = axis_in(axis, first.dim());
  if (!along) return std::nullopt;
  Shape shape = first.sizes().vec();
  shape[*along] = 0;
  for (const Tensor& part : all) {
    // a shape [0] joins any others; more than 3 axes may lie in another order (channels last)
    if (!is_plain(part) || part.scalar_type() != first.scalar_type() || part.dim() != first.dim() ||
        (part.dim() > 3 && !part.is_contiguous()))
      return std::nullopt;
    for (int64_t a = 0; a < first.dim(); ++a)
      if (a != *along && part.size(a) != first.size(a)) return std::nullopt;
    shape[*along] += part.size(*along);
  }
  MaybeTensor y = empty(c10::fromIntArrayRefSlow(shape), first.scalar_type(), {}, {}, {}, {});
  if (!y) return std::nullopt;
  int64_t begin = 0;
  for (const Tensor& part : all) {
    const int64_t length = part.size(*along);
    if (!assign(*light::narrow(*y, *along, begin, length), part)) return std::nullopt;
    begin += length;
  }
  return y;
}

MaybeTensor index_select(const Tensor& x, int64_t axis, const Tensor& index) {
  if (!is_plain(x) || !is_plain(index) || axis != 0 || x.dim() == 0 || !x.is_contiguous() ||
      index.dim() != 1 || index.scalar_type() != at::kLong || !index.is_contiguous() ||
      x.size(0) == 0)
    return std::nullopt;
  const int64_t* const rows = memory_of<int64_t>(index);
  for (int64_t i = 0; i < index.numel(); ++i)
    if (rows[i] < 0 || rows[i] >= x.size(0)) return std::nullopt;
  Shape shape = x.sizes().vec();
  shape[0] = index.numel();
  MaybeTensor y = empty(c10::fromIntArrayRefSlow(shape), x.scalar_type(), {}, {}, {}, {});
  if (!y) return y;
  const size_t bytes = x.numel() / x.size(0) * x.itemsize();
  for (int64_t i = 0; i < index.numel() && bytes > 0; ++i)
    std::memcpy(memory_of<char>(*y) + i * bytes, memory_of<char>(x) + rows[i] * bytes, bytes);
  return y;
}

MaybeTensor zeros_like(const Tensor& x,
                       Maybe<at::ScalarType> type,
                       Maybe<at::Layout> layout,
                       Maybe<at::Device> device,
                       Maybe<bool> pinned,
                       Maybe<at::MemoryFormat> format) {
  MaybeTensor y = light::empty_like(x, type, layout, device, pinned, format);
  if (y && y->numel() > 0) std::memset(memory_of<void>(*y), 0, y->numel() * y->itemsize());
  return y;
}

MaybeTensor add(const Tensor& x, const Tensor& y, const at::Scalar& alpha) {
  if (!is_small(x) || !is_small(y) || x.scalar_type() != at::kFloat ||
      y.scalar_type() != at::kFloat || x.sizes() != y.sizes() || !alpha.equal(1))
    return std::nullopt;
  const float* const further = memory_of<float>(y);
  return mapped<float>(x, [&](float value, int64_t i) { return value + further[i]; });
}

MaybeTensor add_scalar(const Tensor& x, const at::Scalar& y, const at::Scalar& alpha) {
  if (!is_small(x) || !alpha.equal(1) || y.isSymbolic()) return std::nullopt;
  if (x.scalar_type() == at::kFloat && !y.isComplex())
    return mapped<float>(x, [z = y.toFloat()](float value, int64_t) { return value + z; });
  if (x.scalar_type() == at::kLong && y.isIntegral(/*includeBool=*/false))
    return mapped<int64_t>(x, [z = y.toLong()](int64_t value, int64_t) { return value + z; });
  return std::nullopt;
}

MaybeTensor mul_scalar(const Tensor& x, const at::Scalar& y) {
  if (!is_small(x) || x.scalar_type() != at::kFloat || y.isComplex() || y.isSymbolic())
    return std::nullopt;
  return mapped<float>(x, [z = y.toFloat()](float value, int64_t) { return value * z; });
}

MaybeTensor max(const Tensor& x) {
  if (!is_small(x) || x.scalar_type() != at::kLong || x.numel() == 0) return std::nullopt;
  MaybeTensor y = empty({}, at::kLong, {}, {}, {}, {});
  const int64_t* const numbers = memory_of<int64_t>(x);
  if (y) *memory_of<int64_t>(*y) = *std::max_element(numbers, numbers + x.numel());
  return y;
}

}  // namespace light
}  // namespace tessera::ops
