#include "tessera/train/optimizer/shampoo.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/ops/weights/product.h"
#include "tessera/train/optimizer/memory_tensor.h"

namespace tessera::train {
namespace {

/// libtorch's decompositions in one thread: their bits depend on the number of threads.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Eigenvalues in descending order, eigenvectors as columns.
std::pair<Tensor, Tensor> eigen(const Tensor& symmetric) {
  const OneThread one;
  const auto [values, vectors] = at::linalg_eigh(symmetric.to(at::kDouble));
  return {values.flip(-1), vectors.flip(-1)};
}

Tensor across(const Tensor& x) {
  return x.transpose(-2, -1);
}

/// left x right, with the sides that exist.
Tensor between(const Tensor& left, Tensor x, const Tensor& right) {
  if (left.defined()) x = ops::product(left, x);
  if (right.defined()) x = ops::product(x, right);
  return x;
}

Tensor into_basis(const MatrixSide& left, const Tensor& x, const MatrixSide& right) {
  return between(left.turn.defined() ? across(left.turn) : Tensor(), x, right.turn);
}
Tensor out_of_basis(const MatrixSide& left, const Tensor& x, const MatrixSide& right) {
  return between(left.turn, x, right.turn.defined() ? across(right.turn) : Tensor());
}

Tensor zeros(const std::vector<int64_t>& shape, at::Device device) {
  return at::zeros(shape, at::TensorOptions(device).dtype(at::kFloat));
}

MatrixSide side_of(int64_t matrices, int64_t n, int64_t largest, at::Device device) {
  if (n > largest) return {};
  return {zeros({matrices, n, n}, device), zeros({matrices, n, n}, device)};
}

std::vector<int64_t> as_matrices(const ParameterInfo& slot) {
  return {slot.matrices(), slot.rows(), slot.columns()};
}

void move_moments(MatrixSide& left, MatrixSide& right, const Tensor& g, double beta) {
  if (left.moment.defined()) left.moment.mul_(beta).add_(ops::product(g, across(g)), 1 - beta);
  if (right.moment.defined()) right.moment.mul_(beta).add_(ops::product(across(g), g), 1 - beta);
}

void move(Tensor& m, const Tensor& g, double beta) {
  m.mul_(beta).add_(g, 1 - beta);
}

template <class ParameterState>
void append(const ParameterInfo& slot,
            ParameterState& kept,
            const char* turn,
            std::vector<RuleState>& out) {
  const auto add = [&](const std::string& what, const Tensor& tensor) {
    if (tensor.defined())
      out.push_back({what + "." + slot.name, slot.name, tensor.sizes().vec(), DType::f32,
                     tensor.mutable_data_ptr()});
  };
  add("first_moment", kept.m);
  add("second_moment", kept.v);
  add("left_moment", kept.left.moment);
  add("right_moment", kept.right.moment);
  add(std::string("left_") + turn, kept.left.turn);
  add(std::string("right_") + turn, kept.right.turn);
}

/// The next basis of a side, and the order of v's entries along `axis` by eigenvalue.
void turn(MatrixSide& side, Tensor& v, int axis) {
  if (!side.turn.defined()) return;
  const Tensor moved = ops::product(side.moment, side.turn);
  const Tensor order = (side.turn * moved).sum(-2).argsort(-1, true);  // [M, n]
  const Tensor columns = order.unsqueeze(1).expand_as(side.turn);
  const Tensor places =
      axis == 1 ? order.unsqueeze(2).expand_as(v) : order.unsqueeze(1).expand_as(v);
  v.copy_(v.gather(axis, places).clone());
  const OneThread one;
  side.turn.copy_(std::get<0>(at::linalg_qr(moved.gather(-1, columns).to(at::kDouble))));
}

}  // namespace

Soap::Soap(std::vector<ParameterInfo> slots, SoapKeys keys, at::Device device)
    : slots_(std::move(slots)), keys_(std::move(keys)), device_(device) {
  for (const ParameterInfo& slot : slots_)
    kept_.push_back({zeros(as_matrices(slot), device), zeros(as_matrices(slot), device),
                     side_of(slot.matrices(), slot.rows(), keys_.largest, device),
                     side_of(slot.matrices(), slot.columns(), keys_.largest, device)});
}

void Soap::update(std::span<const Parameter> parameters, const Step& step) {
  const at::NoGradGuard no_gradients;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (parameters[s].gradient == nullptr) continue;
    const ParameterInfo& slot = slots_[s];
    ParameterState& kept = kept_[s];
    const Tensor g = memory_tensor(parameters[s].gradient, as_matrices(slot), device_) * step.scale;
    Tensor w = memory_tensor(parameters[s].weight, as_matrices(slot), device_);
    if (step.t == 1) {
      move_moments(kept.left, kept.right, g, keys_.betas[1]);
      for (MatrixSide* side : {&kept.left, &kept.right})
        if (side->turn.defined()) side->turn.copy_(eigen(side->moment).second);
      continue;
    }
    const auto t = static_cast<double>(step.t - 1);
    const Tensor seen = into_basis(kept.left, g, kept.right);
    move(kept.m, seen, keys_.betas[0]);
    move(kept.v, seen.square(), keys_.betas[1]);
    const Tensor along = out_of_basis(kept.left, kept.m / (kept.v.sqrt() + keys_.eps), kept.right);
    const double lr = step.lr * slot.lr_factor, rate = lr *
                                                       std::sqrt(1 - std::pow(keys_.betas[1], t)) /
                                                       (1 - std::pow(keys_.betas[0], t));
    w.mul_(1 - lr * slot.weight_decay).sub_(along, rate);
    move_moments(kept.left, kept.right, g, keys_.betas[1]);
    if ((step.t - 1) % keys_.every != 0) continue;
    const Tensor m = out_of_basis(kept.left, kept.m, kept.right);
    turn(kept.left, kept.v, 1);
    turn(kept.right, kept.v, 2);
    kept.m.copy_(into_basis(kept.left, m, kept.right));
  }
}

std::vector<RuleState> Soap::state() {
  std::vector<RuleState> out;
  for (size_t s = 0; s < slots_.size(); ++s) append(slots_[s], kept_[s], "basis", out);
  return out;
}

Shampoo::Shampoo(std::vector<ParameterInfo> slots, ShampooKeys keys, at::Device device)
    : slots_(std::move(slots)), keys_(std::move(keys)), device_(device) {
  for (const ParameterInfo& slot : slots_)
    kept_.push_back({zeros(as_matrices(slot), device),
                     keys_.graft == Graft::adam ? zeros(as_matrices(slot), device) : Tensor(),
                     side_of(slot.matrices(), slot.rows(), keys_.largest, device),
                     side_of(slot.matrices(), slot.columns(), keys_.largest, device)});
}

void Shampoo::update(std::span<const Parameter> parameters, const Step& step) {
  const at::NoGradGuard no_gradients;
  const auto t = static_cast<double>(step.t);
  const double seen1 = 1 - std::pow(keys_.betas[0], t), seen2 = 1 - std::pow(keys_.betas[1], t);
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (parameters[s].gradient == nullptr) continue;
    const ParameterInfo& slot = slots_[s];
    ParameterState& kept = kept_[s];
    const Tensor g = memory_tensor(parameters[s].gradient, as_matrices(slot), device_) * step.scale;
    Tensor w = memory_tensor(parameters[s].weight, as_matrices(slot), device_);
    move_moments(kept.left, kept.right, g, keys_.betas[1]);
    move(kept.m, g, keys_.betas[0]);
    if ((step.t - 1) % keys_.every == 0)
      for (MatrixSide* side : {&kept.left, &kept.right}) {
        if (!side->turn.defined()) continue;
        const auto [values, vectors] = eigen(side->moment / seen2);
        const Tensor raised = (values.clamp_min(0) +
                               keys_.root_eps * values.select(-1, 0).unsqueeze(-1).clamp_min(1e-30))
                                  .pow(-0.25);
        const OneThread one;
        side->turn.copy_(at::matmul(vectors * raised.unsqueeze(-2), across(vectors)));
      }
    Tensor along = between(kept.left.turn, kept.m / seen1, kept.right.turn);
    if (keys_.graft == Graft::adam) {
      move(kept.v, g.square(), keys_.betas[1]);
      const OneThread one;
      const Tensor adam = kept.m / seen1 / ((kept.v / seen2).sqrt() + keys_.eps);
      const auto size = [](const Tensor& x) {
        return x.to(at::kDouble).square().sum({-2, -1}, true).sqrt();
      };
      along = along * (size(adam) / size(along).clamp_min(1e-30)).to(at::kFloat);
    }
    const double lr = step.lr * slot.lr_factor;
    w.mul_(1 - lr * slot.weight_decay).sub_(along, lr);
  }
}

std::vector<RuleState> Shampoo::state() {
  std::vector<RuleState> out;
  for (size_t s = 0; s < slots_.size(); ++s) append(slots_[s], kept_[s], "root", out);
  return out;
}

}  // namespace tessera::train
