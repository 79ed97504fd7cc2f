// What must hold for every tensor that a reader lets through.
#pragma once

#include "fuzz.h"

#include "tessera/format/tensor_view.h"

namespace tessera::fuzz {

inline void check_tensor(const format::TensorView& tensor, std::span<const std::byte> file) {
  const int64_t bytes = storage_bytes(tensor.dtype, format::element_count(tensor.shape));
  check(static_cast<size_t>(bytes) == tensor.data.size(), "shape and type give the size");
  check(
      tensor.data.empty() || (tensor.data.data() >= file.data() &&
                              tensor.data.data() + tensor.data.size() <= file.data() + file.size()),
      "a view lies in its file");
}

inline void check_tensors(const format::TensorFile& tensors, std::span<const std::byte> file) {
  size_t total = 0;
  for (const format::TensorView& tensor : tensors.tensors()) {
    check_tensor(tensor, file);
    check(tensors.find(tensor.name) == &tensor, "every tensor is found by its name");
    total += tensor.data.size();
  }
  for (const format::UnsupportedTensor& tensor : tensors.unsupported()) total += tensor.data.size();
  check(total <= file.size(), "tensors do not overlap");
}

}  // namespace tessera::fuzz
