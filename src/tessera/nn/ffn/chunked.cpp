#include "tessera/nn/ffn/chunked.h"

#include <algorithm>

#include "tessera/nn/checkpointing.h"

namespace tessera::nn {
namespace {

class ChunkedFfn final : public Ffn {
 public:
  ChunkedFfn(const ChunkedFfnConfig& config, const Builder& builder)
      : chunk_(config.chunk),
        weights_(std::make_shared<std::vector<WeightPtr>>()),
        inner_(build_ffn(config.inner, noting(builder, weights_))) {}

  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const int64_t n = x_ND.size(0);
    if (chunk_ == 0) return inner_->forward(x_ND, context);
    std::vector<Tensor> out;
    for (int64_t begin = 0; begin < n; begin += chunk_) {
      const int64_t rows = std::min(chunk_, n - begin);
      const auto slice = [this, begin, rows](const Tensor& x, Context& here) {
        const std::shared_ptr<const Groups> all = here.groups;
        if (all) here.groups = std::make_shared<const Groups>(all->cut(begin, rows));
        Tensor y = inner_->forward(x, here);
        here.groups = all;
        return y;
      };
      out.push_back(recomputed(slice, *weights_, x_ND.narrow(0, begin, rows), context));
    }
    return out.size() == 1 ? out[0] : out.empty() ? inner_->forward(x_ND, context) : at::cat(out);
  }

 private:
  int64_t chunk_;
  std::shared_ptr<std::vector<WeightPtr>> weights_;
  std::unique_ptr<Ffn> inner_;
};

}  // namespace

std::unique_ptr<Ffn> build(const ChunkedFfnConfig& config, const Builder& builder) {
  return std::make_unique<ChunkedFfn>(config, builder);
}

}  // namespace tessera::nn
