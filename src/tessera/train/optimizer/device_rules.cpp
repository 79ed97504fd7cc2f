#include "tessera/train/optimizer/device_rules.h"

#include <ATen/ATen.h>

#include "tessera/train/optimizer/adamw.h"

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
    for (const std::string& name : moments) {
      moments_.push_back({name, {}});
      for (const ParameterInfo& slot : slots_)
        moments_.back().second.push_back(
            at::zeros(slot.shape, at::TensorOptions(device_).dtype(at::kFloat)));
    }
  }

  void update(std::span<const Parameter> parameters, const Step& step) final {
    require(parameters.size() == slots_.size(), "optimizer", "{} parameters; expected {}",
            parameters.size(), slots_.size());
    const at::NoGradGuard no_graph;
    Update update{.step = step};
    update.moments.resize(moments_.size());
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (parameters[s].gradient == nullptr) continue;
      update.slots.push_back(s);
      update.weights.push_back(tensor_of(parameters[s].weight, slots_[s]));
      update.gradients.push_back(tensor_of(const_cast<float*>(parameters[s].gradient), slots_[s]));
      for (size_t m = 0; m < moments_.size(); ++m)
        update.moments[m].push_back(moments_[m].second[s]);
    }
    if (update.slots.empty()) return;
    if (step.scale != 1) update.gradients = at::_foreach_mul(update.gradients, step.scale);
    apply(update);
  }

  std::vector<RuleState> state() final {
    std::vector<RuleState> out;
    for (const auto& [name, tensors] : moments_)
      for (size_t s = 0; s < slots_.size(); ++s)
        out.push_back({name + "." + slots_[s].name, slots_[s].name, slots_[s].shape, DType::f32,
                       tensors[s].mutable_data_ptr()});
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
  virtual void apply(Update& update) const = 0;

  /// A number for each of the update's parameters.
  template <class Number>
  Scalars each(const Update& update, const Number& number) const {
    Scalars out;
    for (const size_t s : update.slots) out.emplace_back(number(slots_[s]));
    return out;
  }

 private:
  Tensor tensor_of(float* data, const ParameterInfo& slot) const {
    return at::for_blob(data, slot.shape)
        .options(at::TensorOptions(device_).dtype(at::kFloat))
        .target_device(device_)
        .make_tensor();
  }

  std::vector<ParameterInfo> slots_;
  at::Device device_;
  std::vector<std::pair<std::string, Tensors>> moments_;
};

/// Adds decay w to the gradients.
void add_decay(Tensors& gradients, const Tensors& weights, const Scalars& decays) {
  gradients = at::_foreach_add(at::_foreach_mul(weights, decays), gradients);
}

class DeviceAdam final : public DeviceRule {
 public:
  DeviceAdam(std::vector<ParameterInfo> slots, at::Device device, AdamWSettings settings)
      : DeviceRule(std::move(slots), device, {"first_moment", "second_moment"}),
        settings_(settings) {}

 private:
  void apply(Update& u) const override {
    const auto constants = [&](const ParameterInfo& slot) {
      return AdamConstants(settings_, u.step, slot);
    };
    const AdamConstants c = constants({});  // those that all parameters share
    if (settings_.coupled)
      add_decay(u.gradients, u.weights,
                each(u, [](const ParameterInfo& slot) { return slot.weight_decay; }));
    Tensors &m = u.moments[0], &v = u.moments[1];
    at::_foreach_mul_(m, c.beta1);
    at::_foreach_add_(m, u.gradients, c.rest1);
    at::_foreach_mul_(v, c.beta2);
    at::_foreach_addcmul_(v, u.gradients, u.gradients, c.rest2);
    Tensors size = at::_foreach_sqrt(v);
    at::_foreach_mul_(size, c.root);
    at::_foreach_add_(size, c.eps);
    at::_foreach_mul_(u.weights,
                      each(u, [&](const ParameterInfo& slot) { return constants(slot).keep; }));
    at::_foreach_addcdiv_(u.weights, m, size, each(u, [&](const ParameterInfo& slot) {
                            return -constants(slot).rate;
                          }));
  }
  AdamWSettings settings_;
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
  void apply(Update& u) const override {
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
  void apply(Update& u) const override {
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

}  // namespace

std::string no_device_reason(const RuleKeys& rule) {
  const auto* adamw = std::get_if<AdamWKeys>(&rule);
  if (adamw == nullptr) adamw = std::get_if<AdamKeys>(&rule);
  if (adamw != nullptr)
    return adamw->moments == MomentStorage::float32
               ? ""
               : "optimizer.moments \"int8\" computes on a CPU; expected \"float32\"";
  if (std::holds_alternative<SgdKeys>(rule) || std::holds_alternative<LionKeys>(rule)) return "";
  return fmt::format(
      "optimizer \"{}\" computes on a CPU; expected \"adamw\", \"adam\", \"sgd\" or \"lion\"",
      spec::type_of(rule));
}

std::unique_ptr<UpdateRule> device_rule(const RuleKeys& rule,
                                        std::vector<ParameterInfo> slots,
                                        at::Device device) {
  if (const std::string reason = no_device_reason(rule); !reason.empty())
    fail(ErrorKind::usage, "optimizer", "device {}: {}", device.str(), reason);
  if (const auto* sgd = std::get_if<SgdKeys>(&rule))
    return std::make_unique<DeviceSgd>(std::move(slots), device, *sgd);
  if (const auto* lion = std::get_if<LionKeys>(&rule))
    return std::make_unique<DeviceLion>(std::move(slots), device, *lion);
  const auto* adam = std::get_if<AdamKeys>(&rule);
  const AdamWKeys& keys = adam != nullptr ? *adam : std::get<AdamWKeys>(rule);
  return std::make_unique<DeviceAdam>(
      std::move(slots), device,
      AdamWSettings{keys.betas[0], keys.betas[1], keys.eps, adam != nullptr});
}

}  // namespace tessera::train
