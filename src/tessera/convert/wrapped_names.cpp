#include "tessera/convert/wrapped_names.h"

#include <algorithm>
#include <map>
#include <set>

namespace tessera::convert {
namespace {

constexpr size_t kMaxWrappings = 4;

std::vector<std::string> names_of_tensors(const format::TensorFile& file) {
  std::vector<std::string> names;
  for (const format::TensorView& tensor : file.tensors()) names.push_back(tensor.name);
  for (const format::UnsupportedTensor& tensor : file.unsupported()) names.push_back(tensor.name);
  return names;
}

/// The first part of more than half of the names, with its dot; "" = none.
std::string shared_part(const std::vector<std::string>& names) {
  std::map<std::string_view, size_t> counts;
  for (const std::string_view name : names) {
    const size_t dot = name.find('.');
    if (dot != std::string_view::npos && dot + 1 < name.size()) ++counts[name.substr(0, dot + 1)];
  }
  for (const auto& [part, count] : counts)
    if (2 * count > names.size()) return std::string(part);
  return "";
}

std::string without(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

std::vector<Unwrapped> unwrapped(const format::TensorFile& file) {
  std::vector<Unwrapped> ways;
  std::vector<std::string> names = names_of_tensors(file);
  std::string prefix;
  while (ways.size() < kMaxWrappings) {
    const std::string part = shared_part(names);
    if (part.empty()) break;
    for (std::string& name : names) name = without(name, part);
    if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) break;
    prefix += part;
    std::vector<format::TensorView> tensors = file.tensors();
    std::vector<format::UnsupportedTensor> unsupported = file.unsupported();
    for (size_t i = 0; i < names.size(); ++i)
      (i < tensors.size() ? tensors[i].name : unsupported[i - tensors.size()].name) = names[i];
    ways.push_back({prefix, format::TensorFile("checkpoint", file.file(), std::move(tensors),
                                               file.metadata(), std::move(unsupported))});
  }
  return ways;
}

}  // namespace tessera::convert
