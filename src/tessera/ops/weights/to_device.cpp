#include "tessera/ops/weights/to_device.h"

namespace tessera::ops {

WeightPtr to_device(const WeightPtr& w, at::Device device) {
  if (w == nullptr || w->device() == device) return w;
  if (const Weight::Adapted* given = w->parts()) {
    Weight::Adapted parts =
        given->changed([device](const WeightPtr& part) { return to_device(part, device); });
    parts.prefix = to_device(parts.prefix, device);
    return std::make_shared<const Weight>(Weight::adapted(std::move(parts)));
  }
  return std::make_shared<const Weight>(
      Weight(w->name(), w->storage()->to(device)).rounded(w->rounding()));
}

}  // namespace tessera::ops
