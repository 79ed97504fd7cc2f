#include "tessera/nn/ffn/chunked.h"

#include <algorithm>

#include "tessera/nn/rerun.h"

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
    const auto slice = [this](const Tensor& x, Context& here) { return inner_->forward(x, here); };
    std::vector<Tensor> out;
    for (int64_t begin = 0; begin < n; begin += chunk_)
      out.push_back(recomputed(slice, *weights_, x_ND.narrow(0, begin, std::min(chunk_, n - begin)),
                               context));
    return out.size() == 1 ? out[0] : at::cat(out);
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
