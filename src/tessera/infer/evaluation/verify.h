// Whether a model says the same however its input is cut: every branch of every layer, and the
// logits, in all the forms in which a text can be computed.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::infer {

struct VerifyOptions {
  int64_t longest_chunk = 64;  // of the random cuts
  uint64_t seed = 0;           // of the cuts
  const CancelToken* cancel = nullptr;
};

/// The largest difference of one place in one form from the whole text in one call without a state.
struct Difference {
  std::string place;  // "layers.3.mixer", or "logits"
  std::string form;   // "as in training", "chunked", "token by token", "rolled back", "in a batch",
                      // "recomputed"
  double error = 0;   // relative to the place's largest value
  int64_t token = 0;  // where it is
};

struct Verification {
  std::vector<Difference> branches;  // each form by itself: every branch has the whole form's input
  std::vector<Difference> logits;    // of the model as it runs: differences add up over the layers
  /// The largest of them; nothing when there are none.
  static const Difference* worst(const std::vector<Difference>& differences);
};

/// As in training: the parallel or chunked form that gradients pass, in one call. Chunked: calls of
/// random lengths that continue a state. Rolled back: calls that leave their
/// tokens pending, of which a random part is kept. An encoder reads the same tokens as source, and
/// the decoder's forms are compared. Where prompts are prefixes (pattern prefix), half of the
/// tokens count as given: every form reads in one call what of them sees each other. A model
/// without a state to continue from (an encoder, a decoder with an LSH layer): its forms are as in
/// training, and in a batch between two other texts. Where all angles change on the way
/// (model::CallPlan), these forms are of the tokens before, and all of them are compared
/// computed anew: from an empty state in one call across the change, and on from there where angles
/// stay again. Throws Error(input) for fewer than 2 tokens.
Verification verify(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const VerifyOptions& options = {});

/// The largest |got - want| over the largest |want|, and its row; NaN counts as infinite.
Difference largest_difference(const Tensor& got_NC, const Tensor& want_NC);

}  // namespace tessera::infer
