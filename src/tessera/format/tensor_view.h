// Named arrays that lie in a file, as every reader of this layer returns them.
//
// Shapes are row-major, slowest axis first, for every format; bytes are little-endian and may lie
// at any address (copy before reading them as wider than a byte, or check the alignment).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::format {

/// Where columns of matrices [.., O, I] lie in another order than theirs: place i of a row holds
/// the number of column order[i]; I of them for every matrix [O, I], one after the other.
using ColumnOrder = std::shared_ptr<const std::vector<int32_t>>;

struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;              // elements; empty = one number
  std::span<const std::byte> data;         // storage_bytes(dtype, element_count(shape)) of them
  std::shared_ptr<const void> owner = {};  // keeps `data` alive; null when the caller does
  ColumnOrder columns = {};  // of block types; null = in their order, as in every file
};

/// A tensor whose storage type tessera does not compute with. Its place in the file has been
/// checked.
struct UnsupportedTensor {
  std::string name;
  std::string type;  // as the format names it: "F8_E4M3", "IQ4_XS"
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner = {};
};

using StringMap = std::map<std::string, std::string, std::less<>>;

/// Product of the axes. Throws Error(file) when one is negative or the product overflows.
int64_t element_count(std::span<const int64_t> shape);
/// The same, or nothing.
std::optional<int64_t> checked_element_count(std::span<const int64_t> shape);
/// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

/// The tensors of one model, in the order of the file, found by name.
class TensorFile {
 public:
  TensorFile() = default;
  /// `format` and `file` stand in messages. Throws Error(file) when two tensors have one name.
  TensorFile(std::string format,
             std::string file,
             std::vector<TensorView> tensors,
             StringMap metadata = {},
             std::vector<UnsupportedTensor> unsupported = {});

  const std::string& file() const { return file_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const std::vector<UnsupportedTensor>& unsupported() const { return unsupported_; }
  const StringMap& metadata() const { return metadata_; }

  /// Null when there is none of that name. Throws Error(file) that names the type when there is
  /// one, but of an unsupported type: a tensor that is not read does no harm.
  const TensorView* find(std::string_view name) const;
  /// As find, but a missing tensor is an Error(file) too.
  const TensorView& at(std::string_view name) const;

 private:
  std::string_view name_of_index(uint32_t index) const;

  std::string format_;
  std::string file_;
  std::vector<TensorView> tensors_;
  StringMap metadata_;
  std::vector<UnsupportedTensor> unsupported_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, then unsupported_, sorted by name
};

}  // namespace tessera::format
