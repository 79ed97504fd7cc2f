#include "tessera/nn/position/t5.h"

#include "tessera/nn/position/relative.h"

namespace tessera::nn {
namespace {

class T5 final : public Position {
 public:
  T5(const T5Config& config, const Builder& builder)
      : config_(config), table_(home(builder, config.share).weight("weight")) {}

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    const auto range = DistanceRange::of(site, context, config_.max_distance);
    std::vector<int64_t> buckets;
    for (int64_t d = -range.past; d <= range.future; ++d)
      buckets.push_back(config_.bucket(d, context.causal));
    const Tensor table_NH = table_->tensor();
    const std::string name = fmt::format("t5 {} {}", spec::dump_struct(config_).dump(), range.past);
    const Tensor index_R = context.on_device(name, at::tensor(buckets, at::kLong));
    return {.bias_HR = table_NH.index_select(0, index_R).t(), .zero = range.past};
  }

 private:
  T5Config config_;
  WeightPtr table_;
};

}  // namespace

std::unique_ptr<Position> build(const T5Config& config, const Builder& builder) {
  return std::make_unique<T5>(config, builder);
}

}  // namespace tessera::nn
