#include "tessera/train/optimizer/device_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include <ATen/ATen.h>

#include "tessera/train/optimizer/adam_int8.h"
#include "tessera/train/optimizer/adamw.h"
#include "tessera/train/optimizer/memory_tensor.h"
#include "tessera/train/optimizer/muon.h"
#include "tessera/train/optimizer/shampoo.h"

namespace tessera::train {
namespace {

using Tensors = std::vector<Tensor>;
using Scalars = std::vector<at::Scalar>;

/// Rules on a device: state of one tensor per parameter and moment, and parameters as tensors.
class DeviceRule : public UpdateRule {
 public:
  DeviceRule(std::vector<ParameterInfo> slots,
             at::Device device,
             const std::vector<std::string>& moments)
      : slots_(std::move(slots)), device_(device) {
    for (const std::string& name : moments)
      add_moment(name, [](const ParameterInfo& slot) { return std::optional(slot.shape); });
  }

  void update(std::span<const Parameter> parameters, const Step& step) final {
    require(parameters.size() == slots_.size(), "optimizer", "{} parameters; expected {}",
            parameters.size(), slots_.size());
    const at::NoGradGuard no_graph;
    begin(step);
    Update update{.step = step};
    update.moments.resize(moments_.size());
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (parameters[s].gradient == nullptr) continue;
      update.slots.push_back(s);
      update.weights.push_back(memory_tensor(parameters[s].weight, slots_[s].shape, device_));
      update.gradients.push_back(memory_tensor(parameters[s].gradient, slots_[s].shape, device_));
      for (size_t m = 0; m < moments_.size(); ++m)
        update.moments[m].push_back(moments_[m].second[s]);
    }
    if (update.slots.empty()) return;
    // in place: a copy would be as large as the weights
    if (step.scale != 1) at::_foreach_mul_(update.gradients, step.scale);
    apply(update);
  }

  std::vector<RuleState> state() override {
    std::vector<RuleState> out;
    for (const auto& [name, tensors] : moments_)
      for (size_t s = 0; s < slots_.size(); ++s)
        if (tensors[s].defined())
          out.push_back({name + "." + slots_[s].name, slots_[s].name, tensors[s].sizes().vec(),
                         DType::f32, tensors[s].mutable_data_ptr()});
    return out;
  }

 protected:
  /// The parameters with a gradient; gradients are scaled.
  struct Update {
    const Step& step;
    std::vector<size_t> slots = {};
    Tensors weights = {}, gradients = {};
    std::vector<Tensors> moments = {};
  };
  virtual void apply(Update& update) = 0;
  /// Called once per update, before apply(), which parameters without gradients do not reach.
  virtual void begin(const Step& /*step*/) {}

  /// A moment of zeros; shape_of(parameter) is its shape, or none.
  template <class ShapeOf>
  void add_moment(const std::string& name, const ShapeOf& shape_of) {
    moments_.push_back({name, {}});
    for (const ParameterInfo& slot : slots_) {
      const std::optional<std::vector<int64_t>> shape = shape_of(slot);
      moments_.back().second.push_back(
          shape ? at::zeros(*shape, at::TensorOptions(device_).dtype(at::kFloat)) : Tensor());
    }
  }
  Tensors& moment(size_t which) { return moments_[which].second; }
  const Tensors& moment(size_t which) const { return moments_[which].second; }

  /// A number for each of the update's parameters.
  template <class Number>
  Scalars each(const Update& update, const Number& number) const {
    Scalars out;
    for (const size_t s : update.slots) out.emplace_back(number(slots_[s]));
    return out;
  }
  const std::vector<ParameterInfo>& slots() const { return slots_; }
  at::Device device() const { return device_; }

 private:
  std::vector<ParameterInfo> slots_;
  at::Device device_;
  std::vector<std::pair<std::string, Tensors>> moments_;
};

/// Adds decay w to the gradients.
void add_decay(Tensors& gradients, const Tensors& weights, const Scalars& decays) {
  gradients = at::_foreach_add(at::_foreach_mul(weights, decays), gradients);
}

/// AdamW's update, or Adam's, with moments m and v of the update's parameters: libtorch's fused
/// form (at::_fused_adamw_), a launch for all parameters of one rate and decay. It divides by
/// sqrt(v) / sqrt(1 - b2^t) + eps, as adamw.h does.
class DeviceAdamRule : public DeviceRule {
 public:
  DeviceAdamRule(std::vector<ParameterInfo> slots,
                 at::Device device,
                 AdamWSettings settings,
                 const std::vector<std::string>& moments)
      : DeviceRule(std::move(slots), device, moments), settings_(settings) {}

 protected:
  void adam(Update& u, Tensors& m, Tensors& v) const {
    if (device().is_meta())
      return;  // planned (ops/planned_memory.h): a launch that allocates nothing
    // a number on the device, which no step reads back; exact up to 2^24 updates
    const Tensor t =
        at::full({}, static_cast<double>(u.step.t), at::TensorOptions(device()).dtype(at::kFloat));
    std::map<std::pair<double, double>, std::array<Tensors, 4>> groups;
    for (size_t i = 0; i < u.slots.size(); ++i) {
      const ParameterInfo& slot = slots()[u.slots[i]];
      auto& [weights, gradients, first, second] = groups[{slot.lr_factor, slot.weight_decay}];
      weights.push_back(u.weights[i]);
      gradients.push_back(u.gradients[i]);
      first.push_back(m[i]);
      second.push_back(v[i]);
    }
    const auto fused = [this](auto&&... arguments) {
      settings_.coupled ? at::_fused_adam_(arguments...) : at::_fused_adamw_(arguments...);
    };
    for (auto& [key, group] : groups) {
      auto& [weights, gradients, first, second] = group;
      const auto& [lr_factor, decay] = key;
      fused(weights, gradients, first, second, Tensors(), Tensors(weights.size(), t),
            u.step.lr * lr_factor, settings_.beta1, settings_.beta2, decay, settings_.eps,
            /*amsgrad=*/false, /*maximize=*/false);
    }
  }

 private:
  AdamWSettings settings_;
};

class DeviceAdam final : public DeviceAdamRule {
 public:
  DeviceAdam(std::vector<ParameterInfo> slots, at::Device device, AdamWSettings settings)
      : DeviceAdamRule(std::move(slots), device, settings, {"first_moment", "second_moment"}) {}

 private:
  void apply(Update& u) override { adam(u, u.moments[0], u.moments[1]); }
};

/// Moments in 8-bit blocks (adam_int8.h): one parameter at a time has them in float32.
class DeviceAdamInt8 final : public DeviceAdamRule {
 public:
  DeviceAdamInt8(std::vector<ParameterInfo> slots, at::Device device, AdamWSettings settings)
      : DeviceAdamRule(std::move(slots), device, settings, {}),
        first_(true, *this),
        second_(false, *this) {}

  std::vector<RuleState> state() override {
    std::vector<RuleState> out;
    for (size_t s = 0; s < slots().size(); ++s)
      for (const auto& [what, packed] :
           {std::pair{"first_moment", &first_}, {"second_moment", &second_}}) {
        const std::string &parameter = slots()[s].name,
                          name = fmt::format("{}.{}", what, parameter);
        const Tensor &bytes = packed->bytes[s], &scales = packed->scales[s];
        out.push_back({name, parameter, bytes.sizes().vec(), DType::u8, bytes.mutable_data_ptr()});
        out.push_back({name + ".scales", parameter, scales.sizes().vec(), DType::f32,
                       scales.mutable_data_ptr()});
      }
    return out;
  }

 private:
  static constexpr int64_t kBlock = AdamInt8::kBlock;

  /// One moment of all parameters, and its codes.
  struct Packed {
    Packed(bool with_sign, const DeviceAdamInt8& rule) {
      const std::span<const float> table = dynamic_table(with_sign);
      std::vector<float> middles;
      for (size_t i = 0; i + 1 < table.size(); ++i)
        middles.push_back(0.5F * (table[i] + table[i + 1]));
      values = at::tensor(at::ArrayRef<float>(table.data(), table.size())).to(rule.device());
      borders = at::tensor(middles).to(rule.device());
      uint8_t zero = 0;
      float scale = 0;
      pack_block(std::array{0.0F}, with_sign, &zero, scale);
      for (const ParameterInfo& slot : rule.slots()) {
        const int64_t n = slot.elements();
        const at::TensorOptions on(rule.device());
        bytes.push_back(at::full({n}, zero, on.dtype(at::kByte)));
        scales.push_back(at::zeros({(n + kBlock - 1) / kBlock}, on.dtype(at::kFloat)));
      }
    }
    Tensor unpack(size_t slot, at::IntArrayRef shape) const {
      const int64_t n = bytes[slot].numel(), blocks = scales[slot].numel();
      const Tensor x = values.index_select(0, bytes[slot].to(at::kInt));
      return (at::constant_pad_nd(x, {0, blocks * kBlock - n}).reshape({blocks, kBlock}) *
              scales[slot].unsqueeze(1))
          .reshape({-1})
          .narrow(0, 0, n)
          .reshape(shape);
    }
    void pack(size_t slot, const Tensor& moment) {
      const int64_t n = bytes[slot].numel(), blocks = scales[slot].numel();
      const Tensor x = at::constant_pad_nd(moment.reshape({-1}), {0, blocks * kBlock - n})
                           .reshape({blocks, kBlock});
      scales[slot].copy_(x.abs().amax(1));
      const Tensor by = at::where(scales[slot] > 0, scales[slot].reciprocal(), 0.0).unsqueeze(1);
      // the first border that is not below a number
      const Tensor codes = at::bucketize((x * by).clamp(-1, 1), borders, /*out_int32=*/true);
      bytes[slot].copy_(codes.reshape({-1}).narrow(0, 0, n));
    }
    Tensor values, borders;  // of the codes
    Tensors bytes, scales;   // of each parameter
  };

  void apply(Update& u) override {
    for (size_t i = 0; i < u.slots.size(); ++i) {
      const size_t s = u.slots[i];
      Update one{
          .step = u.step, .slots = {s}, .weights = {u.weights[i]}, .gradients = {u.gradients[i]}};
      Tensors m{first_.unpack(s, u.weights[i].sizes())}, v{second_.unpack(s, u.weights[i].sizes())};
      adam(one, m, v);
      first_.pack(s, m[0]);
      second_.pack(s, v[0]);
    }
  }
  Packed first_, second_;
};

class DeviceSgd final : public DeviceRule {
 public:
  DeviceSgd(std::vector<ParameterInfo> slots, at::Device device, const SgdKeys& keys)
      : DeviceRule(
            std::move(slots),
            device,
            keys.momentum > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{}),
        keys_(keys) {}

 private:
  void apply(Update& u) override {
    add_decay(u.gradients, u.weights,
              each(u, [](const ParameterInfo& slot) { return slot.weight_decay; }));
    Tensors steps = u.gradients;
    if (keys_.momentum > 0) {
      Tensors& sum = u.moments[0];
      at::_foreach_mul_(sum, u.step.t == 1 ? 0 : keys_.momentum);
      at::_foreach_add_(sum, u.gradients, u.step.t == 1 ? 1 : 1 - keys_.dampening);
      steps = keys_.nesterov ? at::_foreach_add(u.gradients, sum, keys_.momentum) : sum;
    }
    at::_foreach_sub_(u.weights, at::_foreach_mul(steps, each(u, [&](const ParameterInfo& slot) {
                                                    return u.step.lr * slot.lr_factor;
                                                  })));
  }
  SgdKeys keys_;
};

class DeviceLion final : public DeviceRule {
 public:
  DeviceLion(std::vector<ParameterInfo> slots, at::Device device, const LionKeys& keys)
      : DeviceRule(std::move(slots), device, {"first_moment"}), keys_(keys) {}

 private:
  void apply(Update& u) override {
    const double beta1 = keys_.betas[0], beta2 = keys_.betas[1];
    Tensors& m = u.moments[0];
    Tensors mixed = at::_foreach_mul(m, beta1);
    at::_foreach_add_(mixed, u.gradients, 1 - beta1);
    at::_foreach_mul_(m, beta2);
    at::_foreach_add_(m, u.gradients, 1 - beta2);
    const auto rate = [&](const ParameterInfo& slot) { return u.step.lr * slot.lr_factor; };
    at::_foreach_mul_(u.weights, each(u, [&](const ParameterInfo& slot) {
                        return 1 - rate(slot) * slot.weight_decay;
                      }));
    at::_foreach_sub_(u.weights, at::_foreach_mul(at::_foreach_sign(mixed), each(u, rate)));
  }
  LionKeys keys_;
};

class DeviceMuon final : public DeviceRule {
 public:
  DeviceMuon(std::vector<ParameterInfo> slots, at::Device device, const MuonKeys& keys)
      : DeviceRule(std::move(slots), device, {"momentum"}), keys_(keys) {}

 private:
  void apply(Update& u) override {
    Tensors& b = u.moments[0];
    const Tensors fresh = at::_foreach_mul(u.gradients, 1 - keys_.momentum);
    at::_foreach_mul_(b, keys_.momentum);
    at::_foreach_add_(b, fresh);
    const Tensors along = keys_.nesterov ? at::_foreach_add(fresh, b, keys_.momentum) : b;
    for (size_t i = 0; i < u.slots.size(); ++i) {
      const ParameterInfo& slot = slots()[u.slots[i]];
      const double lr = u.step.lr * slot.lr_factor;
      u.weights[i]
          .mul_(1 - lr * slot.weight_decay)
          .sub_(orthogonalised(along[i], keys_.iterations), lr * muon_scale(keys_.scale, slot));
    }
  }
  MuonKeys keys_;
};

class DeviceAdafactor final : public DeviceRule {
 public:
  DeviceAdafactor(std::vector<ParameterInfo> slots, at::Device device, const AdafactorKeys& keys)
      : DeviceRule(std::move(slots), device, {}), keys_(keys) {
    const auto without = [](const ParameterInfo& slot, int64_t axis) {
      std::vector<int64_t> shape = slot.shape;
      if (shape.size() >= 2) shape.erase(shape.end() + axis);
      return shape.size() < slot.shape.size() ? std::optional(shape) : std::nullopt;
    };
    add_moment("row_moment", [&](const ParameterInfo& slot) { return without(slot, -1); });
    add_moment("column_moment", [&](const ParameterInfo& slot) { return without(slot, -2); });
    add_moment("second_moment", [](const ParameterInfo& slot) {
      return slot.shape.size() < 2 ? std::optional(slot.shape) : std::nullopt;
    });
    add_moment("first_moment", [&](const ParameterInfo& slot) {
      return keys.beta1 > 0 ? std::optional(slot.shape) : std::nullopt;
    });
  }

 private:
  /// Root of the mean square, a scalar in double.
  static Tensor rms(const Tensor& x) {
    return at::linalg_vector_norm(x, 2, std::nullopt, false, at::kDouble) /
           std::sqrt(static_cast<double>(std::max<int64_t>(1, x.numel())));
  }

  void apply(Update& u) override {
    const bool torch_form = keys_.form == AdafactorForm::torch;
    const double eps = torch_form ? std::numeric_limits<float>::epsilon() : 0,
                 least = torch_form ? eps * eps : 1e-38,
                 fresh = std::pow(static_cast<double>(u.step.t), -keys_.decay_power);
    const auto mean = [](const Tensor& x, int64_t axis, bool keep) {
      return x.mean(axis, keep, at::kDouble);
    };
    const auto move = [fresh](const Tensor& moment, const Tensor& to) {
      moment.add_(to.to(at::kFloat) - moment, fresh);
    };
    for (size_t i = 0; i < u.slots.size(); ++i) {
      const ParameterInfo& slot = slots()[u.slots[i]];
      const Tensor &w = u.weights[i], &g = u.gradients[i];
      const Tensor squares = torch_form ? g.square() : g.square() + 1e-30;
      Tensor second = u.moments[2][i];
      if (second.defined()) {
        move(second, squares);
      } else {
        const Tensor &rows = u.moments[0][i], &columns = u.moments[1][i];
        move(rows, mean(squares, -1, false));
        move(columns, mean(squares, -2, false));
        const Tensor by = rows / mean(rows, -1, true).clamp_min(eps);
        second = by.to(at::kFloat).unsqueeze(-1) * columns.unsqueeze(-2);
      }
      const Tensor along = g / second.clamp_min(least).sqrt();
      const double lr = u.step.lr * slot.lr_factor;
      // scalars that depend on numbers of the device
      Tensor rate = at::full({}, lr, at::TensorOptions(device()).dtype(at::kDouble)), keep;
      if (torch_form)
        rate = rms(w).clamp_min(keys_.smallest_rms) *
               std::min(lr, 1 / std::sqrt(static_cast<double>(u.step.t)));
      else if (keys_.scale_parameter)
        rate = rms(w).clamp_min(keys_.smallest_rms) * lr;
      keep = torch_form ? at::full_like(rate, 1 - lr * slot.weight_decay)
                        : 1 - rate * slot.weight_decay;
      Tensor step = along * (rate / (rms(along) / keys_.clip).clamp_min(1));
      if (const Tensor& first = u.moments[3][i]; first.defined())
        step = first.mul_(keys_.beta1).add_(step, 1 - keys_.beta1);
      w.mul_(keep).sub_(step);
    }
  }
  AdafactorKeys keys_;
};

class DeviceScheduleFree final : public DeviceRule {
 public:
  DeviceScheduleFree(std::vector<ParameterInfo> slots,
                     at::Device device,
                     const ScheduleFreeKeys& keys,
                     std::span<const Parameter> weights)
      : DeviceRule(std::move(slots), device, {"free", "second_moment"}), keys_(keys) {
    for (size_t s = 0; s < this->slots().size(); ++s)
      moment(0)[s].copy_(weight(s, weights[s].weight));
  }

  std::vector<RuleState> state() override {
    std::vector<RuleState> out = DeviceRule::state();
    out.push_back({"schedule_free.sums", "", {2}, DType::f64, sums_, true});
    return out;
  }
  bool averages() const override { return true; }
  void to_average(size_t slot, float* weights) const override {
    const at::NoGradGuard no_graph;
    const Tensor y = weight(slot, weights);
    y.add_(moment(0)[slot] - y, 1 - 1 / keys_.betas[0]);
  }

 private:
  Tensor weight(size_t slot, const float* data) const {
    return memory_tensor(data, slots()[slot].shape, device());
  }
  void begin(const Step& step) override {
    sums_[1] = std::max(sums_[1], step.lr);
    const double own = std::pow(sums_[1], keys_.weight_power);
    sums_[0] += own;
    share_ = sums_[0] > 0 ? own / sums_[0] : 0;
  }
  void apply(Update& u) override {
    const double beta1 = keys_.betas[0], beta2 = keys_.betas[1];
    Tensors &z = u.moments[0], &v = u.moments[1], &y = u.weights;
    at::_foreach_mul_(v, beta2);
    at::_foreach_addcmul_(v, u.gradients, u.gradients, 1 - beta2);
    Tensors size = at::_foreach_sqrt(v);
    at::_foreach_mul_(size, 1 / std::sqrt(1 - std::pow(beta2, static_cast<double>(u.step.t))));
    at::_foreach_add_(size, keys_.eps);
    const Tensors d = at::_foreach_add(
        at::_foreach_div(u.gradients, size),
        at::_foreach_mul(y, each(u, [](const ParameterInfo& slot) { return slot.weight_decay; })));
    const auto rate = [&](const ParameterInfo& slot) { return u.step.lr * slot.lr_factor; };
    at::_foreach_add_(y, at::_foreach_sub(z, y), share_);
    at::_foreach_add_(y, at::_foreach_mul(d, each(u, [&](const ParameterInfo& slot) {
                                            return rate(slot) * (beta1 * (1 - share_) - 1);
                                          })));
    at::_foreach_sub_(z, at::_foreach_mul(d, each(u, rate)));
  }
  ScheduleFreeKeys keys_;
  double sums_[2] = {0, 0};  // sum of the weights of updates; the largest rate
  double share_ = 0;         // of z in the average, in this update
};

}  // namespace

std::unique_ptr<UpdateRule> device_rule(const RuleKeys& rule,
                                        std::vector<ParameterInfo> slots,
                                        at::Device device,
                                        std::span<const Parameter> weights) {
  using Rule = std::unique_ptr<UpdateRule>;
  struct Maker {
    std::vector<ParameterInfo>& slots;
    at::Device device;
    std::span<const Parameter> weights;
    Rule adam(const AdamWKeys& keys, bool coupled) const {
      const AdamWSettings settings{keys.betas[0], keys.betas[1], keys.eps, coupled};
      if (keys.moments == MomentStorage::int8)
        return std::make_unique<DeviceAdamInt8>(std::move(slots), device, settings);
      return std::make_unique<DeviceAdam>(std::move(slots), device, settings);
    }
    Rule operator()(const AdamWKeys& keys) const { return adam(keys, false); }
    Rule operator()(const AdamKeys& keys) const { return adam(keys, true); }
    Rule operator()(const SgdKeys& keys) const {
      return std::make_unique<DeviceSgd>(std::move(slots), device, keys);
    }
    Rule operator()(const LionKeys& keys) const {
      return std::make_unique<DeviceLion>(std::move(slots), device, keys);
    }
    Rule operator()(const AdafactorKeys& keys) const {
      return std::make_unique<DeviceAdafactor>(std::move(slots), device, keys);
    }
    Rule operator()(const MuonKeys& keys) const {
      return std::make_unique<DeviceMuon>(std::move(slots), device, keys);
    }
    Rule operator()(const SoapKeys& keys) const {
      return std::make_unique<Soap>(std::move(slots), keys, device);
    }
    Rule operator()(const ShampooKeys& keys) const {
      return std::make_unique<Shampoo>(std::move(slots), keys, device);
    }
    Rule operator()(const ScheduleFreeKeys& keys) const {
      return std::make_unique<DeviceScheduleFree>(std::move(slots), device, keys, weights);
    }
  };
  return std::visit(Maker{slots, device, weights}, rule);
}

}  // namespace tessera::train
