#include "tessera/ops/listed_attention.h"

#include <algorithm>
#include <limits>

namespace tessera::ops {
namespace {

/// Which part of its memory a listed key lies in.
class Parts {
 public:
  void begin_memory(int32_t source) { memories_.push_back({source, {0}}); }
  void add(int64_t keys) {
    auto& ends = memories_.back().ends;
    ends.push_back(ends.back() + keys);
    many_ = many_ || ends.size() > 2;
  }
  bool many() const { return many_; }

  /// The same keys with one source for every part.
  std::vector<ListedKey> located(const std::vector<ListedKey>& keys) const {
    std::vector<ListedKey> out(keys);
    for (ListedKey& key : out) {
      const auto& [first, ends] = memories_[static_cast<size_t>(key.source)];
      const auto part = std::upper_bound(ends.begin(), ends.end(), key.index) - ends.begin() - 1;
      key.source = first + static_cast<int32_t>(part);
      key.index -= ends[static_cast<size_t>(part)];
    }
    return out;
  }

 private:
  struct Memory {
    int32_t first;              // its first source
    std::vector<int64_t> ends;  // 0, then where each part ends
  };
  std::vector<Memory> memories_;
  bool many_ = false;
};

}  // namespace

Attended listed_attention(const Tensor& q_THK,
                          const std::vector<KeyMemory>& memories,
                          const KeyLists& lists,
                          double scale) {
  const Tensor q = q_THK.contiguous();
  std::vector<Tensor> alive;
  std::vector<kernels::KeySource> sources;
  const auto dense_rows = [&](const Tensor& x) {
    alive.push_back(x.stride(2) == 1 ? x : x.contiguous());
    return alive.back();
  };
  Parts parts;
  for (const KeyMemory& memory : memories) {
    parts.begin_memory(static_cast<int32_t>(sources.size()));
    for (size_t i = 0; i < memory.k.size(); ++i) {
      const Tensor k = dense_rows(memory.k[i]), v = dense_rows(memory.v[i]);
      sources.push_back({k.const_data_ptr<float>(), v.const_data_ptr<float>(), k.stride(0),
                         k.stride(1), v.stride(0), v.stride(1)});
      parts.add(k.size(0));
    }
  }
  const std::vector<ListedKey> located =
      parts.many() ? parts.located(lists.keys) : std::vector<ListedKey>();
  const int64_t t = q.size(0), h = q.size(1), values = memories.at(0).v[0].size(2);
  Attended result{at::empty({t, h, values}, q.options()), at::empty({t, h}, q.options())};
  kernels::ListedAttention a;
  a.T = t, a.H = h, a.G = memories[0].k[0].size(1), a.K = q.size(2), a.V = values;
  a.q = q.const_data_ptr<float>();
  a.sources = sources.data();
  a.keys = (parts.many() ? located : lists.keys).data();
  a.ends = lists.ends.data();
  a.L = lists.per_query;
  a.scale = static_cast<float>(scale);
  a.out = result.out.data_ptr<float>();
  a.lse = result.lse.data_ptr<float>();
  kernels::listed_attention(a);
  return result;
}

Attended biased_attention(const Tensor& q_BHTK,
                          const Tensor& k_BGSK,
                          const Tensor& v_BGSV,
                          const Tensor& bias,
                          double scale) {
  const auto type = wide(q_BHTK);
  const int64_t per_group = q_BHTK.size(1) / k_BGSK.size(1);
  const Tensor k = k_BGSK.to(type).repeat_interleave(per_group, 1),
               v = v_BGSV.to(type).repeat_interleave(per_group, 1);
  const Tensor scores = at::matmul(q_BHTK.to(type), k.transpose(-1, -2)) * scale + bias.to(type);
  // a row without keys would give exp(-inf - -inf) = NaN, here and in the gradient of lse
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor empty = scores.detach().amax(-1, true).eq(-kInfinity);
  const Tensor lse = at::logsumexp(scores.masked_fill(empty, 0), -1);
  const Tensor weights = (scores - lse.unsqueeze(-1)).exp();
  return {at::matmul(weights, v).to(q_BHTK.scalar_type()),
          lse.masked_fill(empty.squeeze(-1), -kInfinity)};
}

}  // namespace tessera::ops
