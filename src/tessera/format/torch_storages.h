// What a file of torch.save holds before its tensors are put together: one pickle, and the storages
// that it refers to. Part of torch_file.h.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "tessera/base/dtype.h"
#include "tessera/format/pickle.h"

namespace tessera::format {

struct TorchType {
  std::string_view storage;  // its class in module torch; "" where only untyped storages have it
  std::string_view dtype;    // in module torch
  std::string_view name;     // of safetensors
  int64_t bytes;             // of one element
  std::optional<DType> here = std::nullopt;  // null: listed, not computed with
};

struct TorchStorage {
  const TorchType* type = nullptr;  // null: untyped
  int64_t count = 0;                // elements; bytes of an untyped one
  std::span<const std::byte> data = {};
};

struct TorchContent {
  Pickle pickle;
  std::map<std::string, TorchStorage, std::less<>> by_key;
  std::unordered_map<PickleIndex, const TorchStorage*> storages;  // by the reference to it
};

/// Either form of the file. Throws Error(file).
TorchContent read_torch_content(std::span<const std::byte> bytes, const FileSource& source);

/// "torch.float32"; null when it is no type.
const TorchType* torch_type_of_dtype(std::string_view global);
/// "torch.FloatStorage", "torch.storage.UntypedStorage".
bool is_torch_storage(std::string_view global);

}  // namespace tessera::format
