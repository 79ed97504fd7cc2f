#include "tessera/nn/position/alibi.h"

#include "tessera/nn/position/relative.h"

namespace tessera::nn {
namespace {

class Alibi final : public Position {
 public:
  explicit Alibi(const AlibiConfig& config) : config_(config) {}

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    const auto range = DistanceRange::of(site, context);
    const double times = config_.scaled ? site.scale : 1;
    const std::string name =
        fmt::format("alibi {} {} {} {} {} {} {}", config_.bias_max, static_cast<int>(config_.sides),
                    config_.scaled, site.n_heads, times, range.past, range.future);
    const Tensor table_HR = context.once<Tensor>(name, [&] {
      const AlibiConfig::Slopes slopes = config_.slopes(site.n_heads);
      const auto per_head = [&](const std::vector<double>& of) {
        return (at::tensor(of, at::kDouble) * times).unsqueeze(1);
      };
      const Tensor ahead_R = at::arange(-range.past, range.future + 1, at::kDouble);
      return ahead_R.clamp_max(0) * per_head(slopes.past) -
             ahead_R.clamp_min(0) * per_head(slopes.future);
    });
    return {.bias_HR = context.on_device(name, table_HR), .zero = range.past};
  }

 private:
  AlibiConfig config_;
};

}  // namespace

std::unique_ptr<Position> build(const AlibiConfig& config, const Builder&) {
  return std::make_unique<Alibi>(config);
}

}  // namespace tessera::nn
