// Numbers that a device computes: losses, norms.
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::train {

/// A number in double: on the host, or a scalar on another device that has not been read. A
/// conversion to double reads it, which waits for the device; read() does so for several numbers
/// with one copy.
class DeferredNumber {
 public:
  DeferredNumber() = default;
  DeferredNumber(double value) : value_(value) {}  // NOLINT: sums begin as numbers
  /// A tensor of one element, without its gradient. On a CPU it is read.
  explicit DeferredNumber(const Tensor& scalar) {
    const Tensor own = scalar.detach().to(at::kDouble).reshape({});
    if (own.is_cpu())
      value_ = own.item<double>();
    else
      scalar_ = own;
  }
  operator double() const {  // NOLINT: computed with as a number
    return scalar_.defined() ? scalar_.item<double>() : value_;
  }
  bool is_read() const { return !scalar_.defined(); }
  DeferredNumber& operator+=(const DeferredNumber& other) {
    if (other.is_read() && is_read())
      value_ += other.value_;
    else if (is_read())
      scalar_ = other.scalar_ + value_;
    else
      scalar_ = other.is_read() ? scalar_ + other.value_ : scalar_ + other.scalar_;
    return *this;
  }
  DeferredNumber times(double factor) const {
    return is_read() ? DeferredNumber(value_ * factor) : DeferredNumber(scalar_ * factor);
  }
  /// Reads those that are not read; they are on one device.
  static void read(const std::vector<DeferredNumber*>& numbers) {
    std::vector<DeferredNumber*> waiting;
    std::vector<Tensor> scalars;
    for (DeferredNumber* number : numbers) {
      if (number->is_read()) continue;
      waiting.push_back(number);
      scalars.push_back(number->scalar_);
    }
    if (waiting.empty()) return;
    const Tensor values = at::stack(scalars).cpu();
    for (size_t i = 0; i < waiting.size(); ++i) *waiting[i] = values.const_data_ptr<double>()[i];
  }

 private:
  double value_ = 0;
  Tensor scalar_;
};

}  // namespace tessera::train
