#include "tessera/model/placement.h"

#include <map>
#include <optional>
#include <set>

#include "tessera/ops/weights/to_device.h"

namespace tessera::model {

at::Device device_of(const Weights& weights) {
  return weights.all().empty() ? at::Device(at::kCPU) : weights.all().front().second->device();
}

namespace {

/// `packed`: the type of matrices, instead of their own.
int64_t bytes_there(const Model& model, std::optional<DType> packed) {
  std::set<const ops::Weight*> counted;
  int64_t bytes = 0;
  for (const auto& [decl, weight] : model.weights().all()) {
    if (!counted.insert(weight.get()).second) continue;
    const std::vector<int64_t> shape = weight->shape();
    const bool packs =
        packed && shape.size() > 1 && shape.back() % layout_of(*packed).block_elements == 0;
    bytes += packs ? storage_bytes(*packed, decl.elements()) : weight->bytes();
  }
  return bytes;
}

}  // namespace

int64_t bytes_on_device(const Model& model) {
  return bytes_there(model, std::nullopt);
}
int64_t bytes_on_device(const Model& model, DType packed) {
  return bytes_there(model, packed);
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
