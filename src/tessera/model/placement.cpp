#include "tessera/model/placement.h"

#include "tessera/ops/weights/device_blocks.h"
#include "tessera/ops/weights/to_device.h"

namespace tessera::model {

at::Device device_of(const Weights& weights) {
  return weights.all().empty() ? at::Device(at::kCPU) : weights.all().front().second->device();
}

int64_t bytes_on_device(const Model& model) {
  std::map<const ops::Weight*, int64_t> bytes;
  for (const auto& [decl, weight] : model.weights().all()) {
    const DType type = weight->dtype();
    const bool kept = type == DType::f16 || type == DType::bf16 || type == DType::f64 ||
                      ops::DeviceBlocks::holds(type, weight->shape());
    bytes[weight.get()] = kept ? storage_bytes(type, decl.elements()) : 4 * decl.elements();
  }
  int64_t sum = 0;
  for (const auto& [weight, own] : bytes) sum += own;
  return sum;
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
