// Checks that a model computes the same in all forms (parallel, chunked, recurrent): every branch
// of every layer, and the logits.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::infer {

struct VerifyOptions {
  int64_t longest_chunk = 64;  // max. length of the random chunks
  uint64_t seed = 0;           // of the chunk lengths
  const CancelToken* cancel = nullptr;
};

/// The largest deviation of one place in one form from the whole text in one call without a state.
struct Difference {
  std::string place;  // "layers.3.mixer", or "logits"
  std::string form;   // "as in training", "chunked", "token by token", "rolled back", "in a batch",
                      // "recomputed"
  double error = 0;   // relative to the place's largest absolute value
  int64_t token = 0;  // index of the token
};

struct Verification {
  std::vector<Difference> branches;  // each form alone: every branch gets the reference's input
  std::vector<Difference> logits;    // of the whole model: deviations accumulate over the layers
  /// The largest deviation; nullptr if there are none.
  static const Difference* worst(const std::vector<Difference>& differences);
};

/// Forms. As in training: the parallel or chunked form with gradients, in one call. Chunked: calls
/// of random lengths that continue a state. Rolled back: calls that leave their tokens pending, of
/// which a random part is committed. An encoder gets the same tokens as source, and the decoder's
/// forms are compared. With the pattern prefix, half of the tokens are the prefix: every form feeds
/// it in one call. A model without a state to continue from (an encoder, a decoder with an LSH
/// layer) has the forms as in training and in a batch between two other texts. If all rotary angles
/// change within the text (model::CallPlan), these forms use the tokens before the change. All
/// tokens are compared as recomputed: one call from an empty state across the change, continued
/// where the angles are constant again. Throws Error(input) for fewer than 2 tokens.
Verification verify(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const VerifyOptions& options = {});

/// The largest |got - want| relative to the largest |want|, and its row; NaN counts as infinite.
Difference largest_difference(const Tensor& got_NC, const Tensor& want_NC);

}  // namespace tessera::infer
