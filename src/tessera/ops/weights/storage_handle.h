// What a recorded step keeps of a storage.
#pragma once

#include <torch/custom_class.h>

#include <utility>

#include "tessera/ops/weights/storage.h"

namespace tessera::ops {

struct StorageHandle final : torch::CustomClassHolder {
  explicit StorageHandle(StoragePtr of) : storage(std::move(of)) {}
  StoragePtr storage;
  static c10::IValue keep(const StoragePtr& storage) {
    return c10::IValue::make_capsule(c10::make_intrusive<StorageHandle>(storage));
  }
  static const StoragePtr& kept(const c10::IValue& value) {
    return static_cast<const StorageHandle&>(*value.toCapsule()).storage;
  }
};

}  // namespace tessera::ops
