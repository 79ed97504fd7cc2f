// How a call computes its products with weights. A call hands them on explicitly (nn::Context), and
// a recorded step keeps what its gradients need: a backward pass may run on another thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/kernels/weights/digits.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

using kernels::ProductType;

/// What an adapter's matrix A reads of x [.., I] in training, given the probability of dropping a
/// number and the weight's name, which is a site of random numbers (Hu et al. 2021,
/// arXiv:2106.09685; Weight::Adapted::dropout).
using InputDrop = std::function<Tensor(const Tensor& x, double p, const std::string& weight)>;
using InputDropPtr = std::shared_ptr<const InputDrop>;

struct ProductSettings {
  /// Type of the factors of linear() and grouped_linear(), where gradients are recorded, through
  /// float weights in float32, and of those of their gradients. Micikevicius et al. 2017,
  /// arXiv:1710.03740, whose master weights are the only ones here.
  ProductType type = ProductType::float32;
  /// linear() through a trainable weight in float32 on a CPU adds the weight's gradient to the one
  /// that it has, in place, where backward() would make a tensor of its size first. For pieces of a
  /// loss that go back one by one (train/objective/loss.h): only backward() may be called, and not
  /// torch::autograd::grad of the weight.
  bool gradients_in_place = false;
  /// Null: nothing is dropped.
  InputDropPtr drop = nullptr;
  /// Where no gradient is recorded: how products with weights in blocks or in BF16 read their
  /// inputs (kernels::arithmetic_of).
  kernels::Arithmetic arithmetic = kernels::Arithmetic::float32;
  /// For parts that read whole texts and continue no state. Where no gradient is recorded, products
  /// with float32 weights on a CPU add up as kernels/weights/gemm.h does: faster for many rows. A
  /// row's bits follow from it alone here too, but are others than without.
  bool whole_texts = false;

  /// The same with factors in float32 where gradients are recorded.
  ProductSettings exact() const {
    ProductSettings out = *this;
    out.type = ProductType::float32;
    return out;
  }
  /// The same, with inputs read in this arithmetic.
  ProductSettings reading(kernels::Arithmetic other) const {
    ProductSettings out = *this;
    out.arithmetic = other;
    return out;
  }
  /// The same with another drop.
  ProductSettings with(InputDropPtr other) const {
    ProductSettings out = *this;
    out.drop = std::move(other);
    return out;
  }
};

}  // namespace tessera::ops
