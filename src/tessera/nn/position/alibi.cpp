#include "tessera/nn/position/alibi.h"

#include "tessera/nn/position/relative.h"

namespace tessera::nn {
namespace {

class Alibi final : public Position {
 public:
  explicit Alibi(const AlibiConfig& config) : config_(config) {}

  ops::ScoreTerm score_term(ScoreSite& site, Context&) const override {
    const AlibiConfig::Slopes slopes = config_.slopes(site.n_heads);
    const double times = config_.scaled ? site.scale : 1;
    const auto per_head = [&](const std::vector<double>& of) {
      return (at::tensor(of, at::kDouble) * times).reshape({1, -1, 1, 1});
    };
    return {.bias = [past = per_head(slopes.past), future = per_head(slopes.future)](
                        const ops::ScoreBlock& block, const std::vector<Tensor>&) {
      const Tensor& q = block.q_BHTD;
      const Tensor ahead_TS = distances(block).to(q.scalar_type());
      // one product and one sum with zero: an element's bits are its own
      return ahead_TS.clamp_max(0) * past.to(q.device(), q.scalar_type()) -
             ahead_TS.clamp_min(0) * future.to(q.device(), q.scalar_type());
    }};
  }

 private:
  AlibiConfig config_;
};

}  // namespace

std::unique_ptr<Position> build(const AlibiConfig& config, const Builder&) {
  return std::make_unique<Alibi>(config);
}

}  // namespace tessera::nn
