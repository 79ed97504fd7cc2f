// Embeddings of features: patches and frames.
#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/embed/feature_batch.h"
#include "tessera/nn/embed/frames.h"
#include "tessera/nn/embed/patches.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {

Batch feature_batch(const FeatureEmbedConfig& embed, std::vector<Tensor> features) {
  Batch batch;
  int64_t begin = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    const Tensor& x = features[i];
    const int64_t tokens = embed.tokens(x.sizes().vec());
    if (tokens == 0 || !at::isFloatingType(x.scalar_type()))
      fail(ErrorKind::input, "input", "{} of document {} is {} [{}]; expected floats {}",
           embed.input(), i, x.dtype().name(), fmt::join(x.sizes(), ", "), embed.shape_text());
    const auto row = static_cast<int64_t>(i);
    batch.segments.push_back({.row = row, .begin = begin, .length = tokens, .sample = row});
    begin += tokens;
  }
  batch.ids_N = at::zeros({begin}, at::kLong);
  batch.features = std::move(features);
  batch.number();
  return batch;
}

std::vector<Tensor> features_of(const FeatureEmbedConfig& embed,
                                const Batch& batch,
                                const ops::Weight& like) {
  if (batch.features.size() != batch.segments.size())
    fail(ErrorKind::input, "embed",
         "this model reads {} {} and is given {}; `tessera forward` takes them", embed.input(),
         embed.shape_text(), batch.features.empty() ? "token ids" : "features of other documents");
  const Tensor& dense = like.dense_tensor();
  const auto options = dense.defined()
                           ? dense.options().requires_grad(false)
                           : at::TensorOptions().dtype(at::kFloat).device(like.device());
  std::vector<Tensor> out;
  for (const Tensor& x : batch.features) out.push_back(x.to(options));
  return out;
}

namespace {

/// Positions, norm and dropout after the projection of features.
class FeatureEmbed : public Embed {
 public:
  FeatureEmbed(const FeatureEmbedConfig& config, const Builder& builder)
      : name_(builder.prefix()),
        dropout_(config.dropout),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    if (config.norm)
      norm_ = build_norm(config.norm,
                         builder.under("norm", config.child_scope(builder.scope(), "norm")));
  }
  Tensor forward(Context& context, const StateRows* rows) const override {
    Tensor x_ND = position_->embed(tokens(context), context, rows);
    if (norm_) x_ND = norm_->forward(x_ND, context.products);
    return dropout(x_ND, dropout_, name_, context);
  }

 private:
  virtual Tensor tokens(const Context& context) const = 0;

  std::string name_;
  double dropout_;
  std::unique_ptr<Position> position_;
  std::unique_ptr<Norm> norm_;
};

class Patches final : public FeatureEmbed {
 public:
  Patches(const PatchesConfig& config, const Builder& builder)
      : FeatureEmbed(config, builder),
        config_(config),
        patch_(builder, "patch"),
        class_(config.class_token == ClassToken::none ? nullptr : builder.weight("class")) {}

 private:
  Tensor tokens(const Context& context) const override {
    std::vector<Tensor> pixels;
    std::vector<int64_t> patches;
    for (const Tensor& x_CHW : features_of(config_, *context.batch, *patch_.weight)) {
      // windows [C, rows, columns, p, p] as one row of pixels each
      const Tensor windows = x_CHW.unfold(1, config_.patch, config_.stride)
                                 .unfold(2, config_.patch_width, config_.stride_width);
      pixels.push_back(windows.permute({1, 2, 0, 3, 4}).reshape({-1, config_.pixels()}));
      patches.push_back(pixels.back().size(0));
    }
    const Tensor x_PD = patch_(pixels.size() == 1 ? pixels[0] : at::cat(pixels), context);
    return class_ == nullptr ? x_PD : with_class(x_PD, patches);
  }

  Tensor with_class(const Tensor& x_PD, const std::vector<int64_t>& patches) const {
    const Tensor class_1D = class_->tensor().to(x_PD.scalar_type()).unsqueeze(0);
    std::vector<int64_t> pieces;  // before the class token of a document, and after it
    for (const int64_t n : patches) {
      const int64_t before = config_.class_token == ClassToken::first    ? 0
                             : config_.class_token == ClassToken::middle ? n / 2
                                                                         : n;
      pieces.insert(pieces.end(), {before, n - before});
    }
    const std::vector<Tensor> cut = x_PD.split_with_sizes(pieces);
    std::vector<Tensor> out;
    for (size_t i = 0; i < cut.size(); i += 2)
      out.insert(out.end(), {cut[i], class_1D, cut[i + 1]});
    return at::cat(out);
  }

  PatchesConfig config_;
  Linear patch_;
  WeightPtr class_;
};

class Frames final : public FeatureEmbed {
 public:
  Frames(const FramesConfig& config, const Builder& builder)
      : FeatureEmbed(config, builder), config_(config) {
    for (size_t i = 0; i < config.strides.size(); ++i)
      convs_.emplace_back(builder, fmt::format("conv{}", i));
  }

 private:
  Tensor tokens(const Context& context) const override {
    std::vector<Tensor> out;
    for (const Tensor& x_CT : features_of(config_, *context.batch, *convs_[0].weight)) {
      Tensor x_TC = x_CT.t();
      for (size_t i = 0; i < convs_.size(); ++i)
        x_TC = ops::activate(convs_[i](windows(x_TC, config_.strides[i]), context),
                             kernel_of(config_.act));
      out.push_back(x_TC);
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// What a convolution reads for each of its tokens: [T', C k], the frames of a channel together.
  Tensor windows(const Tensor& x_TC, int64_t stride) const {
    const int64_t k = config_.kernel, t = (x_TC.size(0) - 1) / stride + 1;
    const Tensor padded = at::constant_pad_nd(x_TC, {0, 0, k / 2, k / 2});
    std::vector<Tensor> frames;
    for (int64_t j = 0; j < k; ++j)
      frames.push_back(padded.slice(0, j, j + (t - 1) * stride + 1, stride));
    return at::stack(frames, -1).reshape({t, x_TC.size(1) * k});
  }

  FramesConfig config_;
  std::vector<Linear> convs_;
};

}  // namespace

std::unique_ptr<Embed> build(const PatchesConfig& config, const Builder& builder) {
  return std::make_unique<Patches>(config, builder);
}
std::unique_ptr<Embed> build(const FramesConfig& config, const Builder& builder) {
  return std::make_unique<Frames>(config, builder);
}

}  // namespace tessera::nn
