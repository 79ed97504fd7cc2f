// Norms of queries, keys or values by heads (QkNormConfig) in a call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/mixer/attention/qk_norm.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {

/// HeadNorms of rows in memory (decode_step.h).
struct HeadNormsStep {
  QkNormOver over = QkNormOver::head;
  std::vector<std::shared_ptr<const NormStep>> norms;  // as there
  /// x [tokens, heads, width], on this thread.
  void operator()(float* x, int64_t tokens, int64_t heads, int64_t width) const;
};

/// A projection by heads, and their norms: none, one for all heads, or one per head.
class HeadNorms {
 public:
  /// As declare_head_norms declares them under `name`.
  HeadNorms(const Builder& builder,
            const std::string& name,
            const spec::AnyPart& norm,
            QkNormOver over,
            int64_t heads);
  HeadNorms(const Builder& builder,
            const std::string& name,
            const QkNormConfig& config,
            int64_t heads)
      : HeadNorms(builder, name, config.qk_norm, config.qk_norm_over, heads) {}
  /// A projection [N, heads * D] with its heads apart, [N, heads, D], normed.
  Tensor operator()(const Tensor& projected, const ops::ProductSettings& products) const;
  HeadNormsStep step(StepWeights& weights) const;

 private:
  QkNormOver over_;
  int64_t heads_;
  std::vector<std::unique_ptr<Norm>> norms_;
};

}  // namespace tessera::nn
