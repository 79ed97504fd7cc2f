#include "tessera/train/optimizer/update_rule.h"

#include <algorithm>
#include <numeric>

namespace tessera::train {
namespace {

// 64 KiB of each array: a piece of work, far below any cache's share of the whole
constexpr int64_t kPiece = 16384;

}  // namespace

int64_t ParameterInfo::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t ParameterInfo::matrices() const {
  return shape.size() < 2 ? 1 : elements() / std::max<int64_t>(1, rows() * columns());
}

int64_t RuleState::bytes() const {
  return storage_bytes(
      dtype, std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
}

ElementChunks::ElementChunks(const std::vector<ParameterInfo>& slots) {
  for (size_t s = 0; s < slots.size(); ++s) {
    const int64_t n = slots[s].elements();
    places_.push_back(elements_);
    for (int64_t begin = 0; begin < n; begin += kPiece)
      pieces_.push_back({s, begin, std::min(begin + kPiece, n), elements_ + begin});
    elements_ += n;
  }
}

void Moments::append(const std::vector<ParameterInfo>& slots, std::vector<RuleState>& to) {
  for (size_t s = 0; s < slots.size(); ++s)
    to.push_back({name_ + "." + slots[s].name, slots[s].name, slots[s].shape, DType::f32, at(s)});
}

}  // namespace tessera::train
