#include "tessera/ops/weights/quantized_operands.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/ternary.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr float kInt8Most = 127;

/// What rounding made of x, with the gradient of x.
struct StraightThrough : torch::autograd::Function<StraightThrough> {
  static Tensor forward(AutogradContext*, const Tensor&, const Tensor& rounded) { return rounded; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], Tensor()};
  }
};

Tensor straight_through(const Tensor& x, const Tensor& rounded) {
  return at::GradMode::is_enabled() && x.requires_grad() ? StraightThrough::apply(x, rounded)
                                                         : rounded;
}

/// Whether the loops below compute it; float64 and other devices take torch's operations.
bool by_loops(const Tensor& x) {
  return on_host(x) && x.scalar_type() != at::kDouble;
}

struct MatrixSize {
  int64_t count, numbers;
};

MatrixSize matrices_of(const std::vector<int64_t>& shape) {
  const size_t axes = shape.size();
  MatrixSize size{1, axes == 0 ? 1 : shape[axes - 1]};
  if (axes >= 2) size.numbers *= shape[axes - 2];
  for (size_t axis = 0; axis + 2 < axes; ++axis) size.count *= shape[axis];
  return size;
}

Tensor ternary_by_loops(const Tensor& w) {
  const Tensor from = w.to(at::kFloat).contiguous();
  const Tensor to = at::empty_like(from);
  const auto [count, numbers] = matrices_of(w.sizes().vec());
  for (int64_t m = 0; m < count; ++m) {
    const float* matrix = from.const_data_ptr<float>() + m * numbers;
    kernels::ternary_values(matrix, numbers, kernels::absmean(matrix, numbers),
                            to.mutable_data_ptr<float>() + m * numbers);
  }
  return to.to(w.scalar_type());
}

// Q of one row
void round_row(const float* x, int64_t n, float* to) {
  constexpr float kMagic = 0x1.8p23f;  // rounds numbers below 2^22 to the nearest even
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  most = std::max(most, kernels::kLeastRowMagnitude);
  const float scale = kInt8Most / most, step = most / kInt8Most;
  for (int64_t i = 0; i < n; ++i) {
    const float code = x[i] * scale + kMagic;
    to[i] = (code - kMagic) * step;
  }
}

Tensor int8_by_loops(const Tensor& x) {
  const Tensor from = x.to(at::kFloat).contiguous();
  const Tensor to = at::empty_like(from);
  const int64_t n = x.size(-1), rows = n == 0 ? 0 : x.numel() / n;
  parallel_for(
      rows, 1 + (int64_t{1} << 14) / std::max<int64_t>(1, n), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          round_row(from.const_data_ptr<float>() + r * n, n, to.mutable_data_ptr<float>() + r * n);
      });
  return to.to(x.scalar_type());
}

/// A float matrix, or one for each expert, as ternary numbers in memory of its own.
Weight in_ternary_blocks(const Weight& w) {
  const Tensor numbers = w.tensor().detach().to(at::kFloat).contiguous();
  const auto [count, size] = matrices_of(w.shape());
  std::vector<float> means, factors;
  for (int64_t m = 0; m < count; ++m) {
    means.push_back(kernels::absmean(numbers.const_data_ptr<float>() + m * size, size));
    factors.push_back(1.0f / (1.0f / means.back()));
  }
  const DType type = kernels::ternary_type(w.shape().back(), factors);
  const int64_t bytes = storage_bytes(type, size);
  const auto blocks = std::make_shared<const Tensor>(at::empty({count * bytes}, at::kByte));
  std::vector<uint8_t> codes(static_cast<size_t>(size));
  for (int64_t m = 0; m < count; ++m) {
    kernels::ternary_codes(numbers.const_data_ptr<float>() + m * size, size,
                           means[static_cast<size_t>(m)], codes.data());
    kernels::put_ternary(type, codes.data(), size, factors[static_cast<size_t>(m)],
                         static_cast<char*>(blocks->mutable_data_ptr()) + m * bytes);
  }
  return Weight::stored(w.name(), type, w.shape(), blocks->const_data_ptr(), blocks);
}

}  // namespace

Tensor ternary_matrices(const Tensor& w) {
  Tensor rounded;
  {
    const at::NoGradGuard constant;
    const Tensor given = w.detach();
    if (by_loops(given)) {
      rounded = ternary_by_loops(given);
    } else {
      const Tensor wide = given.scalar_type() == at::kDouble ? given : given.to(at::kFloat);
      const Tensor scale = wide.abs().mean({-2, -1}, /*keepdim=*/true).clamp_min(1e-5).reciprocal();
      rounded = ((wide * scale).round().clamp(-1, 1) / scale).to(given.scalar_type());
    }
  }
  return straight_through(w, rounded);
}

Tensor int8_rows(const Tensor& x) {
  Tensor rounded;
  {
    const at::NoGradGuard constant;
    const Tensor given = x.detach();
    if (by_loops(given)) {
      rounded = int8_by_loops(given);
    } else {
      const Tensor wide = given.scalar_type() == at::kDouble ? given : given.to(at::kFloat);
      const Tensor scale =
          static_cast<double>(kInt8Most) / wide.abs().amax(-1, /*keepdim=*/true).clamp_min(1e-5);
      rounded = ((wide * scale).round() / scale).to(given.scalar_type());
    }
  }
  return straight_through(x, rounded);
}

WeightPtr with_rounding(const WeightPtr& w, OperandRounding rounding) {
  if (w == nullptr || !rounding) return w;
  if (const Weight::Adapted* given = w->parts()) {
    Weight::Adapted parts = *given;
    parts.w = with_rounding(parts.w, rounding);
    return std::make_shared<const Weight>(Weight::adapted(std::move(parts)));
  }
  Weight out = *w;
  if (is_block_type(w->dtype())) {
    rounding.ternary = false;
  } else if (rounding.ternary && !w->trainable() && on_host(w->device())) {
    out = in_ternary_blocks(*w);
    rounding.ternary = false;
  }
  return std::make_shared<const Weight>(out.rounded(rounding));
}

Weight without_rounding(const Weight& w) {
  if (w.parts() != nullptr || !w.rounding()) return w;
  const Weight plain = w.rounded({});
  return w.rounding().ternary ? Weight::dense(w.name(), ternary_matrices(plain.tensor())) : plain;
}

void check_reads_no_rows(const Weight& w) {
  if (w.parts() == nullptr && w.rounding().int8)
    fail(ErrorKind::usage, "quantization",
         "{} is read as a matrix, without activations to round; expected products of x alone in "
         "\"of\", or \"activations\": \"float\"",
         w.name());
}

}  // namespace tessera::ops
