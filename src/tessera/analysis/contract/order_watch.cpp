#include "tessera/analysis/contract/order_watch.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "tessera/ops/basic/ordered_part.h"

namespace tessera::contract {
namespace {

using at::Tensor;
using Dims = std::vector<int64_t>;

thread_local OrderWatch* current = nullptr;

// libtorch's library cuts products, and what is made of them, by its threads; or numbers are added
// by whoever comes first; or a thread's last numbers are computed by another formula than whole
// vectors (measured: 100,003 numbers, and 601 x 97 in other layouts, with 1, 2, 3 and 5 threads)
const std::set<std::string> kAlways = {"mm",
                                       "bmm",
                                       "addmm",
                                       "baddbmm",
                                       "addbmm",
                                       "mv",
                                       "addmv",
                                       "dot",
                                       "vdot",
                                       "convolution",
                                       "convolution_backward",
                                       "native_layer_norm_backward",
                                       "native_group_norm_backward",
                                       "native_batch_norm",
                                       "native_batch_norm_backward",
                                       "_softmax_backward_data",
                                       "sigmoid",
                                       "silu",
                                       "silu_backward",
                                       "gelu",
                                       "gelu_backward",
                                       "softplus",
                                       "softplus_backward",
                                       "mish",
                                       "mish_backward",
                                       "logaddexp",
                                       "logaddexp2",
                                       "linalg_matrix_exp",
                                       "linalg_qr",
                                       "_linalg_eigh",
                                       "_linalg_svd",
                                       "linalg_solve_triangular"};
const std::set<std::string> kSums = {"sum", "mean", "nansum", "logsumexp", "prod"};
// of complex float32 numbers; in double the parameters of S4 are made, few numbers that are rounded
const std::set<std::string> kComplex = {"mul", "div", "exp"};

std::optional<Tensor> tensor_at(const at::RecordFunction& op, size_t i) {
  const auto inputs = op.inputs();
  if (i >= inputs.size() || !inputs[i].isTensor() || !inputs[i].toTensor().defined())
    return std::nullopt;
  return inputs[i].toTensor();
}

/// Whether a sum over these dimensions (none = all) depends on threads: one over the dimension that
/// lies together in memory is computed row by row.
bool sum_depends(const Tensor& x, const Dims& dims) {
  std::vector<bool> summed(static_cast<size_t>(x.dim()), dims.empty());
  for (const int64_t dim : dims) summed[static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)] = true;
  int64_t kept = 1, all = 1, nearest = -1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) == 1) continue;
    (summed[static_cast<size_t>(d)] ? all : kept) *= x.size(d);
    if (nearest < 0 || x.stride(d) < x.stride(nearest)) nearest = d;
  }
  return all > 1 && (kept == 1 || !summed[static_cast<size_t>(nearest)]);
}

Dims dims_at(const at::RecordFunction& op, size_t i) {
  const auto inputs = op.inputs();
  if (i < inputs.size() && inputs[i].isIntList()) return inputs[i].toIntVector();
  if (i < inputs.size() && inputs[i].isInt()) return {inputs[i].toInt()};
  return {};
}

bool depends(const at::RecordFunction& op, const std::string& name, const Tensor& x) {
  const auto inputs = op.inputs();
  // without factors and offsets it is computed row by row
  if (name == "native_layer_norm_backward" && !tensor_at(op, 5)) return false;
  if (kAlways.contains(name)) return true;
  if (kSums.contains(name)) return sum_depends(x, dims_at(op, 1));
  if (x.scalar_type() == at::kComplexFloat && kComplex.contains(name)) return true;
  if (name == "_softmax") return dims_at(op, 1) != Dims{x.dim() - 1} && dims_at(op, 1) != Dims{-1};
  if (name == "pow" && inputs.size() > 1) {
    if (!inputs[1].isScalar()) return true;
    const double exponent = inputs[1].toScalar().toDouble();
    return exponent != std::round(exponent) || std::abs(exponent) > 3;
  }
  if (name == "index_put_" || name == "_index_put_impl_")
    return inputs.size() > 3 && inputs[3].isBool() && inputs[3].toBool();
  return false;
}

}  // namespace

OrderWatch::OrderWatch(int64_t least) : least_(least), before_(current) {
  current = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
            if (current != nullptr && omp_in_parallel() == 0 && !ops::OrderedPart::active())
              current->look(op);
            return nullptr;
          })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OrderWatch::~OrderWatch() {
  at::removeCallback(handle_);
  current = before_;
}

void OrderWatch::look(const at::RecordFunction& op) {
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    node_ = op.name();
    return;
  }
  std::string name = op.name();
  if (name.starts_with("aten::")) name = name.substr(6);
  const auto x = tensor_at(op, 0);
  if (!x || !(x->is_floating_point() || x->is_complex())) return;
  const auto second = tensor_at(op, 1);
  if (std::max(x->numel(), second ? second->numel() : 0) < least_ || !depends(op, name, *x)) return;
  std::string text = fmt::format("{} of [{}]", name, fmt::join(x->sizes(), ", "));
  if (kSums.contains(name)) text += fmt::format(" over [{}]", fmt::join(dims_at(op, 1), ", "));
  if (!at::GradMode::is_enabled() && !node_.empty()) text += " in " + node_;
  found_.insert(std::move(text));
}

}  // namespace tessera::contract
