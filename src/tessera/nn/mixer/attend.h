// What the relatives of softmax attention share: attention inside the documents of a batch, and the
// random numbers of its dropout.
#pragma once

#include <optional>

#include "tessera/nn/mixer/attention.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {

/// Dropout on attention weights, from a stream of its own for every segment.
struct WeightDropout {
  double p = 0;  // 0 = none
  RandomKey key{0};
  ops::Dropout at(int64_t segment_begin) const;
  ops::ScoreOptions in(ops::ScoreOptions how, int64_t segment_begin) const;
  /// Of every segment.
  std::vector<RandomKey> streams(const Batch& batch) const;
};
/// Of the weights `site` in the part `name`; none outside training.
WeightDropout weight_dropout(const Context& context,
                             const std::string& name,
                             double p,
                             const std::string& site = "weights");

/// `how` with what a position scheme adds to the scores of the site, and with the factor it leaves
/// on them; the site's scale is how.scale.
ops::ScoreOptions with_term(ops::ScoreOptions how,
                            const Position& position,
                            ScoreSite site,
                            Context& context);

/// Queries or keys by heads, and their norms: none, one for all heads, or one per head.
class HeadNorms {
 public:
  /// As declare_head_norms declares them under `name`.
  HeadNorms(const Builder& builder,
            const std::string& name,
            const spec::AnyPart& norm,
            QkNormOver over,
            int64_t heads);
  /// A projection [N, heads * D] with its heads apart, [N, heads, D], normed.
  Tensor operator()(const Tensor& projected) const;

 private:
  QkNormOver over_;
  int64_t heads_;
  std::vector<std::unique_ptr<Norm>> norms_;
};

/// The factors on the scores where they are learned, which queries carry.
class LearnedScale {
 public:
  LearnedScale(const Builder& builder, ScoreScale scale);
  Tensor operator()(const Tensor& q_NHD) const;

 private:
  WeightPtr factors_;  // [1] or [H]
};

/// What a row holds of positions [from, to), as it lies in the pages of its state.
std::vector<ops::KeyValues> held_keys(const TokenBuffer& keys,
                                      const TokenBuffer& values,
                                      int64_t from,
                                      int64_t to);

/// Documents of any lengths by one flash attention, where that serves: q_NHK, k_NGK, v_NGV -> [N,
/// H, V].
std::optional<Tensor> attend_packed(const Tensor& q_NHK,
                                    const Tensor& k_NGK,
                                    const Tensor& v_NGV,
                                    const Batch& batch,
                                    const ops::ScoreOptions& options,
                                    const WeightDropout& dropout);

/// Every document of the batch attends to itself: q_NHK, k_NGK, v_NGV -> [N, H, V].
Tensor attend_documents(const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const ops::ScoreOptions& options,
                        const WeightDropout& dropout = {});

}  // namespace tessera::nn
