// Adapters: compositions of weights (Weight::Adapted).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>

#include "tessera/ops/weights/quantized_operands.h"

namespace tessera::ops {

/// Lengths of rows, as far as they do not change: W alone, or all.
struct Weight::Adapted::Kept {
  std::mutex mutex;
  Tensor squares, factors;
};

Weight Weight::adapted(WeightPtr w, WeightPtr a, WeightPtr b, double scale, double dropout) {
  return adapted({.w = std::move(w),
                  .a = std::move(a),
                  .b = std::move(b),
                  .scale = scale,
                  .dropout = dropout});
}

Weight Weight::adapted(Adapted parts) {
  const WeightPtr& w = parts.w;
  const std::vector<int64_t>& whole = w->shape();
  const size_t axes = whole.size();
  const auto expect = [&](const WeightPtr& part, const std::vector<int64_t>& shape,
                          std::string_view name) {
    require(part == nullptr || part->shape() == shape, "adapter", "{}: {} [{}] of a weight [{}]",
            w->name(), name,
            part == nullptr ? std::string() : fmt::format("{}", fmt::join(part->shape(), ", ")),
            fmt::join(whole, ", "));
  };
  require((parts.a == nullptr) == (parts.b == nullptr) &&
              (parts.magnitude == nullptr || parts.a != nullptr),
          "adapter", "{}: half a product", w->name());
  if (parts.a != nullptr) {
    require(axes >= 2 && axes <= 3 && parts.a->shape().size() == axes, "adapter",
            "{}: a low-rank update of a weight of {} axes", w->name(), axes);
    std::vector<int64_t> down = whole, up = whole;
    down[axes - 2] = up[axes - 1] = parts.a->shape()[axes - 2];
    expect(parts.a, down, "A");
    expect(parts.b, up, "B");
  }
  std::vector<int64_t> rows = whole, columns = whole;
  if (axes >= 2) {
    rows.pop_back();
    columns.erase(columns.end() - 2);
  }
  expect(parts.magnitude, rows, "magnitudes");
  expect(parts.out, rows, "factors");
  expect(parts.in, columns, "factors of inputs");
  Weight out;
  out.name_ = w->name();
  parts.kept = std::make_shared<Adapted::Kept>();
  out.adapted_ = std::make_shared<const Adapted>(std::move(parts));
  return out;
}

Tensor Weight::Adapted::input(const Tensor& x, const ProductSettings& settings) const {
  return dropout == 0 || !settings.drop ? x : (*settings.drop)(x, dropout, w->name());
}

std::vector<WeightPtr> Weight::Adapted::all() const {
  std::vector<WeightPtr> out;
  for (const WeightPtr& part : {w, a, b, magnitude, this->out, in, prefix})
    if (part != nullptr) out.push_back(part);
  return out;
}

Tensor Weight::Adapted::matrix(const ProductSettings& settings) const {
  if (dropout > 0 && settings.drop)
    fail(ErrorKind::usage, "adapter",
         "{} is read as a matrix, without inputs to drop; expected adapter dropout 0", w->name());
  Tensor sum = w->tensor(settings);
  if (a != nullptr && w->shape().size() == 3) {
    sum = sum + scale * at::bmm(b->tensor(), a->tensor());
  } else if (a != nullptr) {
    // columns of B A, by the products that kernels and gradients share
    ProductSettings exact = settings.reading(kernels::Arithmetic::float32);
    exact.whole_texts = false;
    sum = sum + scale * linear(a->tensor().t(), *b, nullptr, exact).t();
  }
  const auto by = [&](const Tensor& factors, int64_t axis) {
    sum = sum * (sum.dim() == 1 ? factors : factors.unsqueeze(axis)).to(sum.options());
  };
  if (magnitude != nullptr) by(row_factors(), -1);
  if (out != nullptr) by(out->tensor(), -1);
  if (in != nullptr) by(in->tensor(), -2);
  return sum;
}

namespace {

/// Squares of the lengths of the rows of a matrix, [O] in double; no float copy of it is made.
Tensor squared_rows(const Weight& w) {
  return w.storage() != nullptr ? w.storage()->squared_rows()
                                : w.tensor().detach().to(at::kDouble).square().sum(-1);
}

/// One for each expert, where there are some.
template <class Of>
Tensor each_matrix(const Weight& w, Of of) {
  if (w.shape().size() == 2) return of(-1);
  std::vector<Tensor> out;
  for (int64_t e = 0; e < w.size(0); ++e) out.push_back(of(e));
  return at::stack(out);
}

Weight matrix_of(const Weight& w, int64_t expert) {
  return expert < 0 ? w : w.slice(expert);
}

}  // namespace

/// |w + s b A|^2 = |w|^2 + 2 s b (A w) + s^2 b (A A^T) b of every row w of W and b of B.
Tensor Weight::Adapted::row_factors() const {
  const std::lock_guard lock(kept->mutex);
  const bool fixed = !a->dense_tensor().defined() && !b->dense_tensor().defined() &&
                     !magnitude->dense_tensor().defined();
  if (kept->factors.defined()) return kept->factors;
  Tensor lengths;
  {
    const at::NoGradGuard constant;
    Tensor squares = kept->squares;
    if (!squares.defined())
      squares = each_matrix(
          *w, [&](int64_t e) { return squared_rows(without_rounding(matrix_of(*w, e))); });
    if (!w->trainable() && w->parts() == nullptr) kept->squares = squares;
    const Tensor more = each_matrix(*w, [&](int64_t e) {
      const Weight own = without_rounding(matrix_of(*w, e));
      const Tensor a_RI = matrix_of(*a, e).tensor(), b_OR = matrix_of(*b, e).tensor();
      const Tensor met_OR = linear(a_RI, own).t().to(at::kDouble), b = b_OR.to(at::kDouble),
                   wide = a_RI.to(at::kDouble);
      return (b * (2 * scale * met_OR + scale * scale * b.matmul(wide.matmul(wide.t())))).sum(-1);
    });
    lengths = (squares.to(more.device()) + more).clamp_min(1e-24).sqrt();
  }
  const Tensor rows = magnitude->tensor();
  const Tensor factors = rows / lengths.to(rows.options());
  if (fixed) kept->factors = factors;
  return factors;
}

}  // namespace tessera::ops
