// Names of tensors that a program put a prefix before: "module." of DataParallel, "_orig_mod." of
// torch.compile, the attribute of a LightningModule that holds the model. Found in the file, not
// listed.
#pragma once

#include <string>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::convert {

/// The same tensors without a prefix.
struct Unwrapped {
  std::string prefix;  // "module."
  format::TensorFile file;
};

/// The ways to read a file's names: without the part before the first dot that more than half of
/// them share, without the next such part, and so on. Names without the prefix stay. Empty where
/// there is no such part, or where two tensors would have one name.
std::vector<Unwrapped> unwrapped(const format::TensorFile& file);

}  // namespace tessera::convert
