#include "tessera/nn/mixer/attention/head_norms.h"

#include <fmt/format.h>

#include "tessera/nn/decode_step.h"

namespace tessera::nn {

HeadNorms::HeadNorms(const Builder& builder,
                     const std::string& name,
                     const spec::AnyPart& norm,
                     QkNormOver over,
                     int64_t heads)
    : over_(over), heads_(heads) {
  if (!norm) return;
  if (over != QkNormOver::each_head)
    norms_.push_back(build_norm(norm, builder.under(name)));
  else
    for (int64_t h = 0; h < heads; ++h)
      norms_.push_back(build_norm(norm, builder.under(fmt::format("{}.{}", name, h))));
}

Tensor HeadNorms::operator()(const Tensor& projected, const ops::ProductSettings& products) const {
  const auto apart = [&](const Tensor& x) { return x.reshape({x.size(0), heads_, -1}); };
  if (norms_.empty()) return apart(projected);
  if (over_ == QkNormOver::projection) return apart(norms_[0]->forward(projected, products));
  const Tensor y_NHD = apart(projected);
  if (over_ == QkNormOver::head) return norms_[0]->forward(y_NHD, products);
  std::vector<Tensor> each;
  for (int64_t h = 0; h < heads_; ++h)
    each.push_back(norms_[static_cast<size_t>(h)]->forward(y_NHD.select(1, h), products));
  return at::stack(each, 1);
}

HeadNormsStep HeadNorms::step(StepWeights& weights) const {
  HeadNormsStep out{over_, {}};
  for (const std::unique_ptr<Norm>& norm : norms_) out.norms.push_back(weights.norm(*norm));
  return out;
}

void HeadNormsStep::operator()(float* x, int64_t tokens, int64_t heads, int64_t width) const {
  if (norms.empty()) return;
  if (over == QkNormOver::projection) return (*norms[0])(x, tokens, heads * width, x);
  if (over == QkNormOver::head) return (*norms[0])(x, tokens * heads, width, x);
  for (int64_t i = 0; i < tokens * heads; ++i)
    (*norms[static_cast<size_t>(i % heads)])(x + i * width, 1, width, x + i * width);
}

}  // namespace tessera::nn
