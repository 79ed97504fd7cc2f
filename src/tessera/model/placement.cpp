#include "tessera/model/placement.h"

#include <map>
#include <set>

#include "tessera/ops/weights/to_device.h"

namespace tessera::model {

at::Device device_of(const Weights& weights) {
  return weights.all().empty() ? at::Device(at::kCPU) : weights.all().front().second->device();
}

int64_t bytes_on_device(const Model& model) {
  std::set<const ops::Weight*> counted;
  int64_t bytes = 0;
  for (const auto& [decl, weight] : model.weights().all())
    if (counted.insert(weight.get()).second) bytes += weight->bytes();
  return bytes;
}

Model to_device(const Model& model, at::Device device) {
  std::map<std::string, WeightPtr> weights;
  std::map<const ops::Weight*, WeightPtr> copies;
  for (const auto& [decl, weight] : model.weights().all()) {
    WeightPtr& copy = copies[weight.get()];
    if (copy == nullptr) copy = ops::to_device(weight, device);
    weights[decl.name] = copy;
  }
  return {model.spec(), Weights::check(model.spec(), std::move(weights)), model.arithmetic()};
}

}  // namespace tessera::model
