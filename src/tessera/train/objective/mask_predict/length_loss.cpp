#include "tessera/train/objective/mask_predict/length_loss.h"

#include "tessera/infer/evaluation/score.h"
#include "tessera/train/loop/batch_tensors.h"

namespace tessera::train {

Tensor length_nll(const Tensor& logits_RC, const std::vector<int64_t>& lengths) {
  const Tensor classes = at::tensor(lengths, at::kLong).to(logits_RC.device()) - 1;
  const at::ScalarType type = logits_RC.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return -at::log_softmax(logits_RC, -1, type).gather(-1, classes.unsqueeze(-1)).squeeze(-1);
}

std::vector<int64_t> lengths_of(const PackedBatch& packed) {
  std::vector<int64_t> lengths;
  for (const PackedDocument& piece : packed.pieces) lengths.push_back(piece.length);
  return lengths;
}

void evaluate_lengths(const model::Model& model,
                      const Dataset& source,
                      const EvaluateOptions& options,
                      Evaluation& out) {
  const at::NoGradGuard no_gradients;
  double nats = 0, hits = 0, pairs = 0;
  for (const std::vector<int64_t>& pass : passes_of(source.valid_samples(), options)) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    const PackedBatch packed = source.valid(pass);
    const std::vector<int64_t> lengths = lengths_of(packed);
    const Tensor logits = model.target_lengths(model.encode(sources_of(packed)));
    nats += infer::sum_in_order(length_nll(logits, lengths).to(at::kDouble));
    hits += (logits.argmax(-1) + 1).cpu().eq(at::tensor(lengths, at::kLong)).sum().item<double>();
    pairs += static_cast<double>(lengths.size());
  }
  out.losses[kLengthLoss] = nats / std::max(1.0, pairs);
  out.scores["length_accuracy"] = hits / std::max(1.0, pairs);
}

}  // namespace tessera::train
