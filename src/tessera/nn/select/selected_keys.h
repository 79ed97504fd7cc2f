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
  /// block_TGK: as Select::choose gives them, of queries at positions start, start + 1, ..; blocks
  /// of `size` keys, and groups of `heads` heads.
  SelectedKeys(Tensor block_TGK, int64_t start, int64_t size = 1, int64_t heads = 1)
      : block_TGK_(std::move(block_TGK)),
        blocks_(block_TGK_.const_data_ptr<int32_t>()),
        start_(start),
        size_(size),
        heads_(heads),
        groups_(block_TGK_.dim() == 3 ? block_TGK_.size(1) : 1),
        top_k_(block_TGK_.size(-1)) {}

  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    const auto [begin, end] = of(head, query);
    return key <= query && std::binary_search(begin, end, static_cast<int32_t>(key / size_)) ? 1
                                                                                             : 0;
  }
  void counts(int64_t head,
              kernels::KeyRange queries,
              kernels::KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      std::fill_n(out, keys.end - keys.begin, int8_t{0});
      const auto [begin, end] = of(head, query);
      for (auto block = std::lower_bound(begin, end, static_cast<int32_t>(keys.begin / size_));
           block != end && *block * size_ < keys.end; ++block) {
        const kernels::KeyRange own = keys_of(*block, query);
        const int64_t from = std::max(own.begin, keys.begin), to = std::min(own.end, keys.end);
        if (from < to) std::fill(out + from - keys.begin, out + to - keys.begin, int8_t{1});
      }
    }
  }
  void list(int64_t head,
            int64_t query,
            int64_t end,
            std::vector<kernels::VisibleKey>& out) const override {
    out.clear();
    const auto [first, last] = of(head, query);
    for (auto block = first; block != last; ++block) {
      const kernels::KeyRange own = keys_of(*block, query);
      for (int64_t key = own.begin; key < std::min(own.end, end); ++key) out.push_back({key, 1});
    }
  }
  std::vector<kernels::KeyRange> ranges(int64_t head, int64_t begin, int64_t end) const override {
    if (end - begin != 1) return {{0, end}};
    std::vector<kernels::KeyRange> runs;
    const auto [first, last] = of(head, begin);
    for (auto block = first; block != last; ++block) {
      const kernels::KeyRange own = keys_of(*block, begin);
      if (own.begin >= own.end) continue;
      if (!runs.empty() && runs.back().end == own.begin)
        runs.back().end = own.end;
      else
        runs.push_back(own);
    }
    return runs;
  }
  bool same_for_heads() const override { return groups_ == 1; }
  bool scattered() const override { return true; }

 private:
  /// What the query sees of a block.
  kernels::KeyRange keys_of(int64_t block, int64_t query) const {
    return {block * size_, std::min((block + 1) * size_, query + 1)};
  }
  std::pair<const int32_t*, const int32_t*> of(int64_t head, int64_t query) const {
    const int64_t group = groups_ == 1 ? 0 : head / heads_;
    const int32_t* blocks = blocks_ + ((query - start_) * groups_ + group) * top_k_;
    return {blocks, blocks + std::min(top_k_, query / size_ + 1)};
  }

  Tensor block_TGK_;
  const int32_t* blocks_;
  int64_t start_, size_, heads_, groups_, top_k_;
};

}  // namespace tessera::nn
