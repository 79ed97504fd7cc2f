#include "tessera/nn/router/capacity_room.h"

#include <cmath>

#include "tessera/nn/mixer/segments.h"

namespace tessera::nn {

Tensor BoundedRouter::with_room(const Tensor& expert_NK,
                                const Tensor& sureness_N,
                                Context& context) const {
  if (!drops(context)) return expert_NK;
  const int64_t n = expert_NK.size(0), k = expert_NK.size(1);
  std::vector<int64_t> lengths{n}, room;
  if (group_ == CapacityGroup::document) lengths = lengths_of(*context.batch);
  std::vector<Tensor> order;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    room.push_back(capacity_ > 0
                       ? capacity_
                       : static_cast<int64_t>(std::ceil(factor_ * static_cast<double>(k * length) /
                                                        static_cast<double>(n_experts()))));
    const Tensor places = sureness_N.defined()
                              ? std::get<1>(sureness_N.narrow(0, begin, length)
                                                .to(at::kCPU)
                                                .sort(/*stable=*/true, 0, /*descending=*/true))
                              : at::arange(length, at::kLong);
    order.push_back(places + begin);
    begin += length;
  }
  require(begin == n, name(), "documents of {} tokens; {} are routed", begin, n);
  const Tensor kept = within_capacity(expert_NK, at::cat(order), n_experts(), lengths, room);
  if (context.add_statistic)
    context.add_statistic(name() + ".dropped", (expert_NK.ge(0) & ~kept).sum().to(at::kDouble));
  return at::where(kept, expert_NK, -1);
}

}  // namespace tessera::nn
