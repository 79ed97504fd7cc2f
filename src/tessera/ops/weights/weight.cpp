#include "tessera/ops/weights/weight.h"

#include "tessera/kernels/weights/quantize.h"
#include "tessera/ops/weights/block_storage.h"
#include "tessera/ops/weights/dense_storage.h"
#include "tessera/ops/weights/quantized_operands.h"

namespace tessera::ops {

Weight Weight::dense(std::string name, Tensor tensor) {
  return {std::move(name), std::make_shared<const DenseStorage>(std::move(tensor))};
}

Weight Weight::stored(std::string name,
                      DType dtype,
                      std::vector<int64_t> shape,
                      const void* data,
                      std::shared_ptr<const void> owner) {
  return {std::move(name),
          std::make_shared<const BlockStorage>(dtype, std::move(shape), data, std::move(owner))};
}

Weight Weight::stored(const format::TensorView& view) {
  return {view.name, BlockStorage::of(view)};
}

const Storage& Weight::base() const {
  const Weight* w = this;
  while (w->adapted_ != nullptr) w = w->adapted_->w.get();
  require(w->storage_ != nullptr, "weight", "a weight without numbers");
  return *w->storage_;
}

const Tensor& Weight::dense_tensor() const {
  static const Tensor none;
  return storage_ == nullptr ? none : storage_->dense();
}

Weight Weight::converted(DType dtype) const {
  if (kernels::can_quantize(dtype)) return quantized(dtype);
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    fail(ErrorKind::usage, "weight",
         "{}: no form writes {}; expected f32, bf16, f16 or a block type", name_,
         tessera::name_of(dtype));
  const auto numbers = std::make_shared<const Tensor>(
      tensor().detach().to(at::kCPU, scalar_type_of(dtype), false, true).contiguous());
  return stored(name_, dtype, shape(), numbers->const_data_ptr(), numbers);
}

Weight Weight::quantized(DType dtype) const {
  const int32_t block = layout_of(dtype).block_elements;
  if (shape().empty() || shape().back() % block != 0)
    fail(ErrorKind::usage, "weight",
         "{}: rows of {} numbers; expected a multiple of {}, a block of {}", name_,
         shape().empty() ? 1 : shape().back(), block, tessera::name_of(dtype));
  const Tensor numbers = tensor().detach().to(at::kCPU, at::kFloat).contiguous();
  const auto blocks =
      std::make_shared<const Tensor>(at::empty({storage_bytes(dtype, numbers.numel())}, at::kByte));
  kernels::quantize(dtype, numbers.const_data_ptr<float>(), numbers.numel(),
                    blocks->mutable_data_ptr());
  return stored(name_, dtype, shape(), blocks->const_data_ptr(), blocks);
}

Weight Weight::rounded(OperandRounding rounding) const {
  Weight out = *this;
  out.rounding_ = rounding;
  return out;
}

Weight Weight::slice(int64_t index) const {
  require(shape().size() >= 2 && index >= 0 && index < size(0), "weight",
          "{}: slice {} of a weight of {} axes, {} slices", name_, index, shape().size(),
          shape().empty() ? 0 : size(0));
  if (adapted_ != nullptr)
    return adapted(adapted_->changed([index](const WeightPtr& part) {
      return std::make_shared<const Weight>(part->slice(index));
    }));
  Weight out = *this;
  out.storage_ = storage_->slice(index);
  return out;
}

bool Weight::readable_by_kernels() const {
  if (storage_ == nullptr || rounding_.ternary || (rounding_.int8 && !kernels::has_codes(dtype())))
    return false;
  return storage_->lies_in_rows();
}

Tensor Weight::tensor(const ProductSettings& settings) const {
  if (rounding_) {
    check_reads_no_rows(*this);
    return without_rounding(*this).tensor(settings);
  }
  if (adapted_ != nullptr) return adapted_->matrix(settings);
  require(storage_ != nullptr, "weight", "a weight without numbers");
  return storage_->tensor();
}

}  // namespace tessera::ops
