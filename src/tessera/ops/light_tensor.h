// Memory, views and the smallest arithmetic of dense tensors on a CPU, with libc10 alone.
//
// Each function of `light` has the arguments and the result of the libtorch function that its
// comment names. It returns nothing for a call outside its part: other devices and layouts,
// gradients, modes of libtorch, errors. `tessera-tensors` opens libtorch for those
// (cli/torch_calls.h).
#pragma once

#include <memory>
#include <optional>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// A contiguous CPU tensor over memory that `owner` holds; without one, the caller does.
Tensor tensor_over(const void* data,
                   at::IntArrayRef shape,
                   at::ScalarType type,
                   std::shared_ptr<const void> owner = nullptr);

namespace light {

using MaybeTensor = std::optional<Tensor>;
template <class T>
using Maybe = const std::optional<T>&;

/// at::empty
MaybeTensor empty(c10::SymIntArrayRef shape,
                  Maybe<at::ScalarType> type,
                  Maybe<at::Layout> layout,
                  Maybe<at::Device> device,
                  Maybe<bool> pinned,
                  Maybe<at::MemoryFormat> format);
/// at::empty_like
MaybeTensor empty_like(const Tensor& x,
                       Maybe<at::ScalarType> type,
                       Maybe<at::Layout> layout,
                       Maybe<at::Device> device,
                       Maybe<bool> pinned,
                       Maybe<at::MemoryFormat> format);
/// at::tensor of whole numbers
MaybeTensor tensor(at::ArrayRef<int64_t> values, const at::TensorOptions& options);

/// Tensor::narrow
MaybeTensor narrow(const Tensor& x,
                   int64_t axis,
                   const c10::SymInt& begin,
                   const c10::SymInt& length);
/// Tensor::select
MaybeTensor select(const Tensor& x, int64_t axis, const c10::SymInt& index);
/// Tensor::unsqueeze
MaybeTensor unsqueeze(const Tensor& x, int64_t axis);
/// Tensor::reshape of contiguous numbers
MaybeTensor reshape(const Tensor& x, c10::SymIntArrayRef shape);

/// Tensor::copy_; false: not done. Of other types it converts between float and double, int64 and
/// int32, to both of the former from both of the latter, and between float and 16-bit floats.
bool assign(const Tensor& to, const Tensor& from);
/// Tensor::clone
MaybeTensor clone(const Tensor& x, Maybe<at::MemoryFormat> format);
/// Tensor::to(type)
MaybeTensor to_type(const Tensor& x,
                    at::ScalarType type,
                    bool copied,
                    Maybe<at::MemoryFormat> format);
/// at::cat
MaybeTensor cat(const at::ITensorListRef& parts, int64_t axis);
/// Tensor::index_select of the first axis
MaybeTensor index_select(const Tensor& x, int64_t axis, const Tensor& index);
/// at::zeros_like
MaybeTensor zeros_like(const Tensor& x,
                       Maybe<at::ScalarType> type,
                       Maybe<at::Layout> layout,
                       Maybe<at::Device> device,
                       Maybe<bool> pinned,
                       Maybe<at::MemoryFormat> format);

/// x + y of contiguous floats of one shape; by one thread, hence not many
MaybeTensor add(const Tensor& x, const Tensor& y, const at::Scalar& alpha);
/// x + y of contiguous floats, or of int64 if y is whole
MaybeTensor add_scalar(const Tensor& x, const at::Scalar& y, const at::Scalar& alpha);
/// x * y of contiguous floats
MaybeTensor mul_scalar(const Tensor& x, const at::Scalar& y);
/// Tensor::max of contiguous int64
MaybeTensor max(const Tensor& x);

}  // namespace light
}  // namespace tessera::ops
