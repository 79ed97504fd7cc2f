#include "tessera/nn/depth/layer_drop.h"

#include <algorithm>

#include "tessera/nn/depth/chosen_tokens.h"
#include "tessera/nn/dropout.h"

namespace tessera::nn {
namespace {

class LayerDrop final : public Depth {
 public:
  LayerDrop(const LayerDropConfig& config, const Builder& builder)
      : p_(config.probability(builder.scope().layer, builder.scope().n_layers)),
        name_(builder.prefix()) {}

  Tensor forward(const Tensor& x_ND, const DepthLayer& layer, Context& context) const override {
    if (!context.training || p_ == 0) return layer.run(x_ND, context);
    if (context.call.state != nullptr)
      fail(ErrorKind::usage, "layer_drop",
           "training over segments carries states, which every layer must see; set p to 0");
    const RandomKey site = context.key.fold(name_);
    std::vector<uint8_t> chosen(static_cast<size_t>(context.batch->n_tokens()));
    for (const Segment& s : context.batch->segments)
      if (s.stream(site).uniform(0) >= p_)
        std::fill_n(chosen.begin() + s.begin, s.length, uint8_t{1});
    ChosenTokens some = ChosenTokens::of(*context.batch, chosen, layer, context);
    for (Segment& s : some.batch.segments) s.places = nullptr;  // all tokens of their rows
    if (some.tokens.empty()) return x_ND;
    const Tensor tokens = at::tensor(some.tokens, at::kLong).to(x_ND.device());
    Context inner = some.context(context);
    inner.products.drop = input_drop(context, some.batch);
    return x_ND.index_copy(0, tokens, layer.run(x_ND.index_select(0, tokens), inner));
  }

 private:
  double p_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Depth> build(const LayerDropConfig& config, const Builder& builder) {
  return std::make_unique<LayerDrop>(config, builder);
}

}  // namespace tessera::nn
