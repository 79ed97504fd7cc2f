#include "tessera/ops/weights/grouped_product.h"

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/ops/basic/ordered_part.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// enough blocks for many threads, as long as each has rows for a product at full speed
constexpr int64_t kBlocks = 8, kLeast = 16, kMost = 512;

/// Rows of a block of a side of n: at least two blocks where there are two rows, so that each is
/// computed within a parallel region, where the library has one thread.
int64_t step_of(int64_t n) {
  const int64_t even = (n + kBlocks - 1) / kBlocks;
  const int64_t whole = std::clamp((even + kLeast - 1) / kLeast * kLeast, kLeast, kMost);
  return std::max<int64_t>(1, std::min(whole, (n + 1) / 2));
}

/// Multiply-adds that are worth a task of their own.
constexpr int64_t kTask = 1 << 18;

/// a_BMK b_BKN without a graph.
Tensor batched(const Tensor& a, const Tensor& b) {
  const int64_t n = a.size(0);
  const Tensor out = at::empty({n, a.size(1), b.size(2)}, a.options());
  if (out.numel() == 0) return out;
  if (n == 1) {
    multiply_into(out[0], a[0], b[0]);
    return out;
  }
  // some matrices together where they are small; of fewer than two tasks none is within a region
  const int64_t work = std::max<int64_t>(1, a.size(1) * a.size(2) * b.size(2));
  const int64_t step = std::clamp<int64_t>(kTask / work, 1, (n + 1) / 2);
  parallel_in_turn((n + step - 1) / step, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_graph;
    const OrderedPart ordered;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * step, size = std::min(step, n - begin);
      Tensor block = out.narrow(0, begin, size);
      at::bmm_out(block, a.narrow(0, begin, size), b.narrow(0, begin, size));
    }
  });
  return out;
}

struct Product : torch::autograd::Function<Product> {
  /// a_BMK b_BKN
  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b) {
    context->save_for_backward({a, b});
    return batched(a.detach(), b.detach());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &a = saved[0], &b = saved[1], &g = gradients[0];
    // a gradient that is to have one itself is computed by operations that have
    const auto times = [](const Tensor& x, const Tensor& y) {
      return at::GradMode::is_enabled() ? at::bmm(x, y) : batched(x, y);
    };
    return {context->needs_input_grad(0) ? times(g, b.mT()) : Tensor(),
            context->needs_input_grad(1) ? times(a.mT(), g) : Tensor()};
  }
};

bool is_blocked(const Tensor& a, const Tensor& b) {
  const auto plain = [](const Tensor& x) {
    return on_host(x) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
  };
  return plain(a) && plain(b) && a.scalar_type() == b.scalar_type();
}

/// Whether gemm() can read x as it lies.
bool has_unit_stride(const Tensor& x) {
  return (x.stride(0) == 1 || x.stride(1) == 1) && x.stride(0) > 0 && x.stride(1) > 0;
}

}  // namespace

namespace {

/// x as gemm() reads it where that is to compute, which other strides must not stop.
Tensor readable(const Tensor& x, ProductType type) {
  return type != ProductType::float32 && !has_unit_stride(x) ? x.contiguous() : x;
}

/// Whether gemm() computes this one.
bool by_gemm(const Tensor& out, const Tensor& a, const Tensor& b, ProductType type) {
  const bool fits = out.stride(1) == 1 && out.stride(0) >= out.size(1);
  if (type != ProductType::float32) {
    require(fits, "product", "an output of strides {}, {}", out.stride(0), out.stride(1));
    return true;
  }
  return fits && out.scalar_type() == at::kFloat && has_unit_stride(a) && has_unit_stride(b) &&
         kernels::gemm_pays(out.size(0), out.size(1), a.size(1));
}

void gemm_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add, ProductType type) {
  const Tensor x = readable(a, type), y = readable(b, type);
  kernels::gemm(type, {x.const_data_ptr<float>(), x.stride(0), x.stride(1)},
                {y.const_data_ptr<float>(), y.stride(0), y.stride(1)}, out.size(0), out.size(1),
                x.size(1), out.mutable_data_ptr<float>(), out.stride(0), add);
}

/// A part of a product along its longer side.
ProductInto part_of(const ProductInto& whole, int64_t begin, int64_t size) {
  if (whole.out.size(0) >= whole.out.size(1))
    return {whole.out.narrow(0, begin, size), whole.a.narrow(0, begin, size), whole.b};
  return {whole.out.narrow(1, begin, size), whole.a, whole.b.narrow(1, begin, size)};
}

int64_t longer_side(const Tensor& out) {
  return std::max(out.size(0), out.size(1));
}

}  // namespace

void multiply_into(
    const Tensor& out, const Tensor& a, const Tensor& b, bool add, ProductType type) {
  if (out.numel() == 0) return;
  if (by_gemm(out, a, b, type)) return gemm_into(out, a, b, add, type);
  const int64_t length = longer_side(out), step = step_of(length);
  parallel_in_turn((length + step - 1) / step, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_graph;
    const OrderedPart ordered;
    for (int64_t i = first; i < last; ++i) {
      ProductInto part = part_of({out, a, b}, i * step, std::min(step, length - i * step));
      if (add)
        part.out.addmm_(part.a, part.b);
      else
        at::mm_out(part.out, part.a, part.b);
    }
  });
}

void multiply_each(const std::vector<ProductInto>& products, ProductType type) {
  // multiply-adds that are a task; what is larger is cut
  constexpr int64_t kWhole = int64_t{1} << 25;
  struct Task {
    const ProductInto* whole;
    int64_t begin, size;
  };
  std::vector<Task> tasks;
  for (const ProductInto& p : products) {
    if (p.out.numel() == 0) continue;
    const int64_t length = longer_side(p.out);
    const int64_t step = p.out.numel() * p.a.size(1) <= kWhole ? length : step_of(length);
    for (int64_t begin = 0; begin < length; begin += step)
      tasks.push_back({&p, begin, std::min(step, length - begin)});
  }
  // one alone would not be within a parallel region
  if (tasks.size() == 1)
    return multiply_into(tasks[0].whole->out, tasks[0].whole->a, tasks[0].whole->b, /*add=*/false,
                         type);
  parallel_in_turn(std::ssize(tasks), 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_graph;
    const OrderedPart ordered;
    for (int64_t i = first; i < last; ++i) {
      const Task& task = tasks[static_cast<size_t>(i)];
      const ProductInto& whole = *task.whole;
      ProductInto part = part_of(whole, task.begin, task.size);
      // how it is computed does not turn on how it is cut
      if (by_gemm(whole.out, whole.a, whole.b, type))
        gemm_into(part.out, part.a, part.b, /*add=*/false, type);
      else
        at::mm_out(part.out, part.a, part.b);
    }
  });
}

namespace {

struct InPlaceProduct : torch::autograd::Function<InPlaceProduct> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_NI,
                        const Tensor& w_OI,
                        ProductType type) {
    context->save_for_backward({x_NI, w_OI});
    context->saved_data["type"] = static_cast<int64_t>(type);
    Tensor y = at::empty({x_NI.size(0), w_OI.size(0)}, x_NI.options());
    multiply_into(y, x_NI.detach(), w_OI.detach().t(), /*add=*/false, type);
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x_NI = saved[0], &w_OI = saved[1], &dy = gradients[0];
    const auto type = static_cast<ProductType>(context->saved_data["type"].toInt());
    require(!at::GradMode::is_enabled(), "product", "a gradient in place has none itself");
    Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = at::empty(x_NI.sizes(), x_NI.options());
      multiply_into(dx, dy, w_OI.detach(), /*add=*/false, type);
    }
    if (context->needs_input_grad(1)) {
      Tensor& dw = w_OI.mutable_grad();
      const bool add = dw.defined();
      if (!add) dw = at::empty(w_OI.sizes(), w_OI.options());
      multiply_into(dw, dy.t(), x_NI, add, type);
    }
    return {dx, Tensor(), Tensor()};
  }
};

/// x_NI b_KN of rounded factors.
struct RoundedProduct : torch::autograd::Function<RoundedProduct> {
  static Tensor of(const Tensor& a, const Tensor& b, ProductType type) {
    if (!on_host(a)) return on_device(a.detach(), b.detach(), type);
    Tensor y = at::empty({a.size(0), b.size(1)}, a.options());
    if (a.size(1) == 0) return y.zero_();
    multiply_into(y, a.detach(), b.detach(), /*add=*/false, type);
    return y;
  }
  /// Sums are float32. CUDA's products take factors of 16 bits as they are, other devices' do not.
  static Tensor on_device(const Tensor& a, const Tensor& b, ProductType type) {
    const auto half = type == ProductType::bf16 ? at::kBFloat16 : at::kHalf;
    const Tensor x = a.to(half), y = b.to(half);
    return x.is_cuda() ? at::mm(x, y, at::kFloat) : at::mm(x.to(at::kFloat), y.to(at::kFloat));
  }
  static Tensor forward(AutogradContext* context,
                        const Tensor& a,
                        const Tensor& b,
                        ProductType type) {
    context->save_for_backward({a, b});
    context->saved_data["type"] = static_cast<int64_t>(type);
    return of(a, b, type);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &a = saved[0], &b = saved[1], &dy = gradients[0];
    const auto type = static_cast<ProductType>(context->saved_data["type"].toInt());
    const auto times = [type](const Tensor& x, const Tensor& y) {
      return at::GradMode::is_enabled() ? apply(x, y, type) : of(x, y, type);
    };
    return {context->needs_input_grad(0) ? times(dy, b.t()) : Tensor(),
            context->needs_input_grad(1) ? times(a.t(), dy) : Tensor(), Tensor()};
  }
};

}  // namespace

Tensor product_in_place(const Tensor& x_NI, const Tensor& w_OI, ProductType type) {
  return InPlaceProduct::apply(x_NI, w_OI, type);
}

Tensor rounded_product(const Tensor& a, const Tensor& b_KN, ProductType type) {
  auto sizes = a.sizes().vec();
  sizes.back() = b_KN.size(1);
  return RoundedProduct::apply(a.reshape({-1, a.size(-1)}), b_KN, type).reshape(sizes);
}

Tensor product(const Tensor& a, const Tensor& b) {
  if (!is_blocked(a, b) || a.dim() < 2 || b.dim() < 2) return at::matmul(a, b);
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  require(b.size(-2) == k, "product", "{} and {} channels", k, b.size(-2));
  // one matrix for all rows
  if (b.dim() == 2) {
    auto sizes = a.sizes().vec();
    sizes.back() = n;
    const int64_t rows = c10::multiply_integers(a.sizes().slice(0, a.dim() - 1));
    return Product::apply(a.reshape({1, rows, k}), b.unsqueeze(0)).reshape(sizes);
  }
  const auto leading = [](const Tensor& x) { return x.sizes().slice(0, x.dim() - 2); };
  const std::vector<int64_t> batch = at::infer_size(leading(a), leading(b));
  const auto with = [&](int64_t rows, int64_t columns) {
    std::vector<int64_t> sizes = batch;
    sizes.insert(sizes.end(), {rows, columns});
    return sizes;
  };
  const int64_t count = c10::multiply_integers(batch);
  const auto items = [&](const Tensor& x, int64_t rows, int64_t columns) {
    const std::vector<int64_t> wanted = with(rows, columns);
    return expanded(x, wanted).reshape({count, rows, columns});
  };
  return Product::apply(items(a, m, k), items(b, k, n)).reshape(with(m, n));
}

Tensor einsum(std::string_view equation, const Tensor& a, const Tensor& b) {
  if (!is_blocked(a, b)) return at::einsum(equation, {a, b});
  const size_t comma = equation.find(','), arrow = equation.find("->");
  require(comma < arrow && arrow != std::string_view::npos, "einsum", "\"{}\" of two tensors",
          equation);
  const std::string_view left = equation.substr(0, comma),
                         right = equation.substr(comma + 1, arrow - comma - 1),
                         result = equation.substr(arrow + 2);
  const auto in = [](std::string_view letters, char c) {
    return letters.find(c) != std::string_view::npos;
  };
  // letters of both and the result, of one and the result, and of both alone
  std::string both, of_a, of_b, summed;
  for (const char c : result) (in(left, c) ? (in(right, c) ? both : of_a) : of_b) += c;
  for (const char c : left)
    if (!in(result, c)) summed += c;
  const auto sizes_of = [](const Tensor& x, std::string_view letters, const std::string& some) {
    std::vector<int64_t> sizes;
    for (const char c : some) sizes.push_back(x.size(static_cast<int64_t>(letters.find(c))));
    return sizes;
  };
  const auto count = [](const std::vector<int64_t>& sizes) {
    return c10::multiply_integers(sizes);
  };
  const auto arranged = [&](const Tensor& x, std::string_view letters, const std::string& rows,
                            const std::string& columns) {
    std::vector<int64_t> order;
    for (const char c : both + rows + columns)
      order.push_back(static_cast<int64_t>(letters.find(c)));
    require(order.size() == letters.size() && x.dim() == std::ssize(order), "einsum",
            "\"{}\": {} for a tensor of {} axes", equation, letters, x.dim());
    return x.permute(order).reshape({count(sizes_of(x, letters, both)),
                                     count(sizes_of(x, letters, rows)),
                                     count(sizes_of(x, letters, columns))});
  };
  const Tensor y =
      Product::apply(arranged(a, left, of_a, summed), arranged(b, right, summed, of_b));
  std::vector<int64_t> sizes = sizes_of(a, left, both + of_a);
  for (const int64_t size : sizes_of(b, right, of_b)) sizes.push_back(size);
  std::vector<int64_t> order;
  const std::string have = both + of_a + of_b;
  for (const char c : result) order.push_back(static_cast<int64_t>(have.find(c)));
  return y.reshape(sizes).permute(order);
}

}  // namespace tessera::ops
