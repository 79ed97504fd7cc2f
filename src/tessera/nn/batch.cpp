#include "tessera/nn/batch.h"

#include <algorithm>

#include "tessera/nn/context.h"

namespace tessera::nn {

int64_t Batch::equal_length() const {
  if (segments.empty()) return 0;
  for (const Segment& s : segments)
    if (s.start != 0 || s.length != segments.front().length) return 0;
  return segments.front().length;
}

bool Batch::in_order() const {
  return std::any_of(segments.begin(), segments.end(),
                     [](const Segment& s) { return s.order != nullptr; });
}

int64_t Batch::longest() const {
  int64_t longest = 0;
  for (const Segment& s : segments) longest = std::max(longest, s.document());
  return longest;
}

void Batch::number() {
  positions_N = at::empty({n_tokens()}, at::kLong);
  auto* out = positions_N.data_ptr<int64_t>();
  for (const Segment& s : segments)
    for (int64_t i = 0; i < s.length; ++i) {
      if (s.order && i >= s.order->text())
        out[s.begin + i] = s.order->places[static_cast<size_t>(i - s.order->text())];
      else
        out[s.begin + i] = s.places ? (*s.places)[static_cast<size_t>(i)] : s.start + i;
    }
}

Batch Batch::of(const std::vector<std::vector<int64_t>>& rows, const std::vector<int64_t>& starts) {
  Batch batch;
  std::vector<int64_t> ids;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    batch.segments.push_back({.row = row,
                              .begin = static_cast<int64_t>(ids.size()),
                              .length = static_cast<int64_t>(rows[r].size()),
                              .start = starts.empty() ? 0 : starts[r],
                              .sample = row});
    ids.insert(ids.end(), rows[r].begin(), rows[r].end());
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  return batch;
}

Batch Batch::of(const Tensor& ids_BT) {
  Batch batch;
  for (int64_t r = 0; r < ids_BT.size(0); ++r)
    batch.segments.push_back(
        {.row = r, .begin = r * ids_BT.size(1), .length = ids_BT.size(1), .sample = r});
  batch.ids_N = ids_BT.reshape({-1}).to(at::kLong);
  batch.number();
  return batch;
}

const Segment* Encoded::of_row(int64_t row) const {
  const auto found = std::find_if(source.segments.begin(), source.segments.end(),
                                  [row](const Segment& s) { return s.row == row; });
  return found == source.segments.end() ? nullptr : &*found;
}

}  // namespace tessera::nn
