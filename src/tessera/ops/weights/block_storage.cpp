#include "tessera/ops/weights/block_storage.h"

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/ops/form.h"
#include "tessera/ops/light_tensor.h"
#include "tessera/ops/weights/dense_storage.h"
#include "tessera/ops/weights/device_blocks.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::ops {
namespace {

/// n rows of k numbers, in their order, from where they lie in `columns` (null: in their order).
void widen(DType type, const void* data, int64_t n, int64_t k, const int32_t* columns, float* to) {
  if (columns == nullptr) return kernels::dequantize(type, data, n * k, to);
  const int64_t row_bytes = storage_bytes(type, k);
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    kernels::dequantize(type, static_cast<const char*>(data) + i * row_bytes, k, row.data());
    out_of_order(row.data(), 1, k, columns, to + i * k);
  }
}

}  // namespace

BlockStorage::BlockStorage(DType dtype,
                           std::vector<int64_t> shape,
                           const void* data,
                           std::shared_ptr<const void> owner,
                           ColumnsPtr columns)
    : KernelStorage(dtype, std::move(shape)),
      data_(data),
      owner_(std::move(owner)),
      columns_(std::move(columns)) {
  if (dtype == DType::f32 && reinterpret_cast<uintptr_t>(data) % alignof(float) == 0)
    view_ = tensor_over(data, this->shape(), at::kFloat, owner_);
}

StoragePtr BlockStorage::of(const format::TensorView& view) {
  ColumnsPtr columns;
  if (view.columns != nullptr) {
    require(is_block_type(view.dtype) && view.shape.size() >= 2 &&
                std::ssize(*view.columns) * view.shape[view.shape.size() - 2] ==
                    format::element_count(view.shape),
            "weight", "{}: an order of {} columns of rows of {}", view.name, view.columns->size(),
            view.shape.empty() ? 1 : view.shape.back());
    columns = {view.columns, view.columns->data()};
  }
  return std::make_shared<const BlockStorage>(view.dtype, view.shape, view.data.data(), view.owner,
                                              std::move(columns));
}

Tensor BlockStorage::tensor() const {
  if (view_.defined()) return view_;
  Tensor out = at::empty(shape(), at::kFloat);
  if (dtype() == DType::f64) {
    out.copy_(at::from_blob(const_cast<void*>(data_), shape(), at::kDouble));
    return out;
  }
  const int64_t last = shape().empty() ? 1 : shape().back();
  const int64_t n_rows = last == 0 ? 0 : elements() / last;
  const int64_t row_bytes = storage_bytes(dtype(), last);
  auto* to = out.data_ptr<float>();
  // rows of one matrix, which have one order
  const int64_t of_matrix = shape().size() < 2 ? n_rows : shape()[shape().size() - 2];
  parallel_for(n_rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t next = begin; begin < end; begin = next) {
      next = std::min(end, (begin / of_matrix + 1) * of_matrix);
      widen(dtype(), static_cast<const char*>(data_) + begin * row_bytes, next - begin, last,
            columns_ == nullptr ? nullptr : columns_.get() + begin / of_matrix * last,
            to + begin * last);
    }
  });
  return out;
}

StoragePtr BlockStorage::slice(int64_t index) const {
  std::vector<int64_t> own(shape().begin() + 1, shape().end());
  require(columns_ == nullptr || shape().size() > 2, "weight", "a row of ordered columns");
  const int64_t numbers = elements() / size(0);
  ColumnsPtr columns;
  if (columns_ != nullptr)
    columns = {columns_, columns_.get() + index * (numbers / own[own.size() - 2])};
  return std::make_shared<const BlockStorage>(
      dtype(), std::move(own),
      static_cast<const char*>(data_) + index * storage_bytes(dtype(), numbers), owner_,
      std::move(columns));
}

StoragePtr BlockStorage::to(at::Device device) const {
  if (on_host(device)) return shared_from_this();
  if (is_block_type(dtype()))
    return std::make_shared<const DeviceBlocks>(
        dtype(), shape(), at::from_blob(const_cast<void*>(data_), {bytes()}, at::kByte).to(device),
        columns_);
  const auto dense = [&](const Tensor& numbers) {
    return std::make_shared<const DenseStorage>(numbers.to(device));
  };
  switch (dtype()) {
    case DType::f64:  // tensor() is of float32
      return dense(at::from_blob(const_cast<void*>(data_), shape(), at::kDouble));
    case DType::f16:
    case DType::bf16:
      return dense(tensor().to(scalar_type_of(dtype())));
    default:
      return dense(tensor());
  }
}

Tensor BlockStorage::rows(const Tensor& ids_N) const {
  const int64_t n = ids_N.numel(), d = size(1);
  const Tensor ids = ids_N.to(at::kCPU, at::kLong).contiguous();
  Tensor out = at::empty({n, d}, at::kFloat);
  const int64_t row_bytes = storage_bytes(dtype(), d);
  for (int64_t i = 0; i < n; ++i)
    widen(dtype(), static_cast<const char*>(data_) + ids.const_data_ptr<int64_t>()[i] * row_bytes,
          1, d, columns(), out.data_ptr<float>() + i * d);
  return on_host(ids_N) ? out : out.to(ids_N.device());
}

}  // namespace tessera::ops
