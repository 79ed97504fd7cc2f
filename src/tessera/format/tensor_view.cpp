#include "tessera/format/tensor_view.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/spec/json.h"

namespace tessera::format {

std::optional<int64_t> checked_element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t axis : shape) {
    const auto product = axis < 0 ? std::nullopt : checked_multiply(count, axis);
    if (!product) return std::nullopt;
    count = *product;
  }
  return count;
}

int64_t element_count(std::span<const int64_t> shape) {
  if (const auto count = checked_element_count(shape)) return *count;
  fail(ErrorKind::file, "shape", "{} is negative or overflows 64 bits", shape_text(shape));
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

TensorFile::TensorFile(std::string format,
                       std::string file,
                       std::vector<TensorView> tensors,
                       StringMap metadata,
                       std::vector<UnsupportedTensor> unsupported)
    : format_(std::move(format)),
      file_(std::move(file)),
      tensors_(std::move(tensors)),
      metadata_(std::move(metadata)),
      unsupported_(std::move(unsupported)),
      by_name_(tensors_.size() + unsupported_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return name_of_index(a) < name_of_index(b); });
  const auto same = [&](uint32_t a, uint32_t b) { return name_of_index(a) == name_of_index(b); };
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(), same);
  if (twice != by_name_.end())
    FileSource{format_, file_}.fail("two tensors are named {}", in_quotes(name_of_index(*twice)));
}

std::string_view TensorFile::name_of_index(uint32_t index) const {
  return index < tensors_.size() ? tensors_[index].name
                                 : unsupported_[index - tensors_.size()].name;
}

const TensorView* TensorFile::find(std::string_view name) const {
  const auto less = [&](uint32_t index, std::string_view wanted) {
    return name_of_index(index) < wanted;
  };
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name, less);
  if (found == by_name_.end() || name_of_index(*found) != name) return nullptr;
  if (*found < tensors_.size()) return &tensors_[*found];
  FileSource{format_, file_}.fail("tensor {} has type {}, which is not supported; convert it first",
                                  in_quotes(name), unsupported_[*found - tensors_.size()].type);
}

const TensorView& TensorFile::at(std::string_view name) const {
  if (const TensorView* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const uint32_t index : by_name_) names.emplace_back(name_of_index(index));
  const std::string near = spec::nearest_name(name, names);
  FileSource{format_, file_}.fail("no tensor {} among {}{}", in_quotes(name), names.size(),
                                  near.empty() ? "" : "; nearest is " + in_quotes(near));
}

}  // namespace tessera::format
