#include "tessera/cli/torch_calls.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <bit>
#include <complex>
#include <utility>

#include "tessera/cli/delayed_library.h"
#include "tessera/ops/light_tensor.h"

namespace tessera::cli {
namespace {

namespace light = ops::light;
using at::Tensor;
using light::MaybeTensor;

/// A call of kTorch that kLight serves, or libtorch.
template <auto kLight, auto kTorch, class Result, class... Args>
Result served(Args... args) {
  if (MaybeTensor result = kLight(args...)) return *std::move(result);
  delayed::open();
  return kTorch(std::forward<Args>(args)...);
}

template <auto kLight, auto kTorch, class Result, class... Args>
const void* address_of_served(Result (*)(Args...)) {
  return reinterpret_cast<const void*>(&served<kLight, kTorch, Result, Args...>);
}

template <auto kLight, auto kTorch>
void serve() {
  delayed::replace(reinterpret_cast<const void*>(kTorch),
                   address_of_served<kLight, kTorch>(kTorch));
}

Tensor& served_copy(Tensor& to, const Tensor& from, bool non_blocking) {
  if (light::assign(to, from)) return to;
  delayed::open();
  return at::_ops::copy_::call(to, from, non_blocking);
}

Tensor served_numbers(at::ArrayRef<int64_t> values, const at::TensorOptions& options) {
  if (MaybeTensor x = light::tensor(values, options)) return *std::move(x);
  delayed::open();
  return at::tensor(values, options);
}

int& threads() {
  static int number = 0;
  return number;
}

void served_threads(int number) {
  threads() = number;
  omp_set_num_threads(number);
}

/// The code of a member function that is not virtual.
template <class Function>
const void* code_of(Function function) {
  struct Parts {
    const void* code;
    ptrdiff_t adjustment;
  };
  static_assert(sizeof(Function) == sizeof(Parts));  // of the Itanium C++ ABI
  return std::bit_cast<Parts>(function).code;
}

template <class T>
bool holds(const at::TensorBase& x) {
  return x.defined() && x.scalar_type() == c10::CppTypeToScalarType<T>::value;
}

template <class T>
T* served_data(const at::TensorBase* x) {
  if (holds<T>(*x)) return x->unsafeGetTensorImpl()->mutable_data_ptr_impl<T>();
  delayed::open();
  return x->data_ptr<T>();
}

template <class T>
T* served_mutable_data(const at::TensorBase* x) {
  if (holds<T>(*x)) return x->unsafeGetTensorImpl()->mutable_data_ptr_impl<T>();
  delayed::open();
  return x->mutable_data_ptr<T>();
}

template <class T>
const T* served_const_data(const at::TensorBase* x) {
  if (holds<T>(*x)) return x->unsafeGetTensorImpl()->data_ptr_impl<T>();
  delayed::open();
  return x->const_data_ptr<T>();
}

int64_t served_item(const Tensor* x) {
  if (holds<int64_t>(*x) && x->device().is_cpu() && x->numel() == 1)
    return *static_cast<const int64_t*>(x->unsafeGetTensorImpl()->data());
  delayed::open();
  return x->item<int64_t>();
}

template <class T>
void serve_data() {
  using Base = at::TensorBase;
  T* (Base::*const data)() const = &Base::data_ptr<T>;
  T* (Base::*const mutable_data)() const = &Base::mutable_data_ptr<T>;
  const T* (Base::*const const_data)() const = &Base::const_data_ptr<T>;
  delayed::replace(code_of(data), reinterpret_cast<const void*>(&served_data<T>));
  delayed::replace(code_of(mutable_data), reinterpret_cast<const void*>(&served_mutable_data<T>));
  delayed::replace(code_of(const_data), reinterpret_cast<const void*>(&served_const_data<T>));
}

}  // namespace

void open_torch_when_called() {
  serve<&light::empty, &at::_ops::empty_memory_format::call>();
  serve<&light::empty_like, &at::_ops::empty_like::call>();
  serve<&light::narrow, &at::_ops::narrow::call>();
  serve<&light::select, &at::_ops::select_int::call>();
  serve<&light::unsqueeze, &at::_ops::unsqueeze::call>();
  serve<&light::clone, &at::_ops::clone::call>();
  serve<&light::cat, &at::_ops::cat::call>();
  constexpr auto to_type = [](const Tensor& x, at::ScalarType type, bool, bool copied,
                              const auto& format) {
    return light::to_type(x, type, copied, format);
  };
  serve<to_type, &at::_ops::to_dtype::call>();
  constexpr auto to_device = [](const Tensor& x, at::Device device, at::ScalarType type, bool,
                                bool copied, const auto& format) {
    return device.is_cpu() ? light::to_type(x, type, copied, format) : MaybeTensor();
  };
  serve<to_device, &at::_ops::to_device::call>();
  constexpr auto to_options = [](const Tensor& x, const auto& type, const auto& layout,
                                 const auto& device, const auto& pinned, bool, bool copied,
                                 const auto& format) {
    return layout.value_or(at::kStrided) == at::kStrided && device.value_or(at::kCPU).is_cpu() &&
                   !pinned.value_or(false)
               ? light::to_type(x, type.value_or(x.scalar_type()), copied, format)
               : MaybeTensor();
  };
  serve<to_options, &at::_ops::to_dtype_layout::call>();
  serve<&light::reshape, &at::_ops::reshape::call>();
  serve<&light::index_select, &at::_ops::index_select::call>();
  serve<&light::zeros_like, &at::_ops::zeros_like::call>();
  serve<&light::add, &at::_ops::add_Tensor::call>();
  serve<&light::add_scalar, &at::_ops::add_Scalar::call>();
  serve<&light::mul_scalar, &at::_ops::mul_Scalar::call>();
  serve<&light::max, &at::_ops::max::call>();
  int64_t (Tensor::*const item)() const = &Tensor::item<int64_t>;
  delayed::replace(code_of(item), reinterpret_cast<const void*>(&served_item));
  delayed::replace(reinterpret_cast<const void*>(&at::_ops::copy_::call),
                   reinterpret_cast<const void*>(&served_copy));
  Tensor (*const numbers)(at::ArrayRef<int64_t>, const at::TensorOptions&) = &at::tensor;
  delayed::replace(reinterpret_cast<const void*>(numbers),
                   reinterpret_cast<const void*>(&served_numbers));
  delayed::replace(reinterpret_cast<const void*>(&at::set_num_threads),
                   reinterpret_cast<const void*>(&served_threads));
  serve_data<float>();
  serve_data<double>();
  serve_data<int64_t>();
  serve_data<int32_t>();
  serve_data<int8_t>();
  serve_data<uint8_t>();
  serve_data<bool>();
  delayed::when_open([] {
    if (threads() > 0) at::set_num_threads(threads());
  });
}

void open_torch() {
  delayed::open();
}

}  // namespace tessera::cli
