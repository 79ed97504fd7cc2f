// The keys that a part has chosen for the queries of one document (parts.h, Select), as attention
// asks what is visible.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/kernels/attention/visibility.h"
#include "tessera/ops/tensor.h"

namespace tessera::nn {

class SelectedKeys final : public kernels::Visibility {
 public:
  /// key_TK: as Select::choose gives them, of queries at positions start, start + 1, ..
  SelectedKeys(Tensor key_TK, int64_t start)
      : key_TK_(std::move(key_TK)),
        keys_(key_TK_.const_data_ptr<int32_t>()),
        start_(start),
        top_k_(key_TK_.size(1)) {}

  int64_t multiplicity(int64_t, int64_t query, int64_t key) const override {
    const auto [begin, end] = of(query);
    return std::binary_search(begin, end, static_cast<int32_t>(key)) ? 1 : 0;
  }
  void counts(int64_t,
              kernels::KeyRange queries,
              kernels::KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      std::fill_n(out, keys.end - keys.begin, int8_t{0});
      const auto [begin, end] = of(query);
      for (auto key = std::lower_bound(begin, end, static_cast<int32_t>(keys.begin));
           key != end && *key < keys.end; ++key)
        out[*key - keys.begin] = 1;
    }
  }
  void list(int64_t,
            int64_t query,
            int64_t end,
            std::vector<kernels::VisibleKey>& out) const override {
    out.clear();
    const auto [first, last] = of(query);
    for (auto key = first; key != last && *key < end; ++key) out.push_back({*key, 1});
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t begin, int64_t end) const override {
    if (end - begin != 1) return {{0, end}};
    std::vector<kernels::KeyRange> runs;
    const auto [first, last] = of(begin);
    for (auto key = first; key != last; ++key)
      if (!runs.empty() && runs.back().end == *key)
        ++runs.back().end;
      else
        runs.push_back({*key, *key + 1});
    return runs;
  }
  bool scattered() const override { return true; }

 private:
  std::pair<const int32_t*, const int32_t*> of(int64_t query) const {
    const int32_t* keys = keys_ + (query - start_) * top_k_;
    return {keys, keys + std::min(top_k_, query + 1)};
  }

  Tensor key_TK_;
  const int32_t* keys_;
  int64_t start_, top_k_;
};

}  // namespace tessera::nn
