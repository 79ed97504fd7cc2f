#include "tessera/ops/basic/ordered_sum.h"

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/ordered_part.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// numbers of a part: below 2^15, which libtorch sums on one thread
constexpr int64_t kPart = 32767;

/// Parts that are summed one by one, and then added in pairs.
struct Halving {
  std::vector<std::pair<Tensor, Tensor>> parts;  // numbers, and where their sum goes
  std::vector<std::pair<Tensor, Tensor>> pairs;  // in order: the second is added to the first

  /// `sum` has 1 where x has a dimension that is summed.
  void cut(const Tensor& x, const Tensor& sum) {
    if (x.numel() <= kPart) {
      parts.emplace_back(x, sum);
      return;
    }
    const auto longest = std::max_element(x.sizes().begin(), x.sizes().end());
    const int64_t dim = longest - x.sizes().begin(), half = *longest / 2, rest = *longest - half;
    const bool summed = sum.size(dim) == 1;
    const Tensor other =
        summed ? at::empty(sum.sizes(), sum.options()) : sum.narrow(dim, half, rest);
    cut(x.narrow(dim, 0, half), summed ? sum : sum.narrow(dim, 0, half));
    cut(x.narrow(dim, half, rest), other);
    if (summed) pairs.emplace_back(sum, other);
  }
};

/// x.sum(dims, true) without a graph. dims not negative.
Tensor sum_in_halves(const Tensor& x, const std::vector<int64_t>& dims) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (const int64_t dim : dims) sizes[static_cast<size_t>(dim)] = 1;
  const Tensor sum = at::empty(sizes, x.options());
  if (x.numel() == 0) return sum.zero_();
  Halving halves;
  halves.cut(x, sum);
  parallel_in_turn(std::ssize(halves.parts), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_graph;
    const OrderedPart ordered;
    for (int64_t i = begin; i < end; ++i) {
      auto& [numbers, out] = halves.parts[static_cast<size_t>(i)];
      at::sum_out(out, numbers, dims, true);
    }
  });
  for (const auto& [one, other] : halves.pairs) one.add_(other);
  return sum;
}

/// Dimensions of `from` that were 1, or were not, before it became `to`.
std::vector<int64_t> broadcast_dims(at::IntArrayRef from, at::IntArrayRef to) {
  const size_t added = to.size() - from.size();
  std::vector<int64_t> dims;
  for (size_t i = 0; i < to.size(); ++i)
    if (i < added || (from[i - added] == 1 && to[i] != 1)) dims.push_back(static_cast<int64_t>(i));
  return dims;
}

bool is_ordered(const Tensor& x) {
  return x.is_floating_point() && on_cpu(form_of(Op::ordered_sum, x));
}

struct OrderedSum : torch::autograd::Function<OrderedSum> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const std::vector<int64_t>& dims) {
    context->saved_data["sizes"] = x.sizes().vec();
    return sum_in_halves(x.detach(), dims);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].expand(context->saved_data["sizes"].toIntVector()), Tensor()};
  }
};

struct Spread : torch::autograd::Function<Spread> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const std::vector<int64_t>& sizes) {
    context->saved_data["sizes"] = x.sizes().vec();
    // no view: autograd takes none from a function
    const Tensor wide = x.detach().expand(sizes);
    return at::empty({0}, x.options())
        .set_(wide.storage(), wide.storage_offset(), wide.sizes(), wide.strides());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const std::vector<int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const Tensor& g = gradients[0];
    return {ordered_sum(g, broadcast_dims(sizes, g.sizes()), true).reshape(sizes), Tensor()};
  }
};

}  // namespace

Tensor ordered_sum(const Tensor& x, at::IntArrayRef dims, bool keepdim) {
  std::vector<int64_t> wrapped;
  for (const int64_t dim : dims) wrapped.push_back(dim < 0 ? dim + x.dim() : dim);
  if (wrapped.empty()) return x;
  if (!is_ordered(x)) return x.sum(wrapped, keepdim);
  const bool learns = x.requires_grad() && at::GradMode::is_enabled();
  Tensor sum = learns ? OrderedSum::apply(x, wrapped) : sum_in_halves(x, wrapped);
  if (keepdim) return sum;
  std::vector<int64_t> sizes;
  for (int64_t dim = 0; dim < x.dim(); ++dim)
    if (std::find(wrapped.begin(), wrapped.end(), dim) == wrapped.end())
      sizes.push_back(x.size(dim));
  return sum.reshape(sizes);
}

Tensor ordered_sum(const Tensor& x) {
  return ordered_sum(x.reshape({-1}), {0});
}

Tensor ordered_mean(const Tensor& x) {
  return ordered_sum(x) / static_cast<double>(x.numel());
}

Tensor ordered_mean(const Tensor& x, at::IntArrayRef dims, bool keepdim) {
  const Tensor sum = ordered_sum(x, dims, keepdim);
  return sum / (static_cast<double>(x.numel()) / static_cast<double>(sum.numel()));
}

Tensor spread(const Tensor& x, at::IntArrayRef sizes) {
  const bool learns = x.requires_grad() && at::GradMode::is_enabled();
  if (!learns || !is_ordered(x) || x.sizes() == sizes) return x;
  return Spread::apply(x, sizes.vec());
}

Tensor spread(const Tensor& x, const Tensor& like) {
  return spread(x, at::infer_size(x.sizes(), like.sizes()));
}

Tensor repeat_each(const Tensor& x, int64_t times, int64_t dim) {
  if (times == 1) return x;
  const int64_t at = dim < 0 ? dim + x.dim() : dim;
  const Tensor one = x.unsqueeze(at + 1);
  std::vector<int64_t> sizes = one.sizes().vec();
  sizes[static_cast<size_t>(at + 1)] = times;
  return expanded(one, sizes).flatten(at, at + 1);
}

}  // namespace tessera::ops
