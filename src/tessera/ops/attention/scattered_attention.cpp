#include "tessera/ops/attention/scattered_attention.h"

#include <cmath>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/attention/listed_attention.h"

namespace tessera::ops {
namespace {

constexpr int64_t kQueriesAtOnce = 64;  // their lists exist at one time

}  // namespace

Tensor scattered_attention(const Tensor& q_BTHD,
                           const Tensor& k_BSGD,
                           const Tensor& v_BSGD,
                           int64_t start,
                           int64_t first,
                           const ScoreOptions& options) {
  const int64_t end = first + k_BSGD.size(1),
                heads = options.visibility->same_for_heads() ? 1 : q_BTHD.size(2);
  const ListsOf lists = [who = options.visibility, start, first, end, heads](int64_t from,
                                                                             int64_t n) {
    std::vector<KeyLists> of_queries(static_cast<size_t>(n));
    parallel_for(n, 1, [&](int64_t begin, int64_t stop) {
      std::vector<kernels::VisibleKey> seen;
      for (int64_t i = begin; i < stop; ++i)
        for (int64_t head = 0; head < heads; ++head) {
          KeyLists& lists = of_queries[static_cast<size_t>(i)];
          who->list(head, start + from + i, end, seen);
          for (const auto& [key, times] : seen)
            if (key >= first)
              lists.add(0, key - first, times == 1 ? 0 : std::log(static_cast<double>(times)));
          lists.end_list();
        }
    });
    KeyLists out;
    out.per_query = heads;
    for (const KeyLists& lists : of_queries) out.append(lists);
    return out;
  };
  std::vector<Tensor> out;
  for (int64_t b = 0; b < q_BTHD.size(0); ++b)
    out.push_back(listed_attention(q_BTHD[b], {KeyMemory(k_BSGD[b], v_BSGD[b])}, lists,
                                   options.scale, kQueriesAtOnce));
  return at::stack(out);
}

}  // namespace tessera::ops
