#include "tessera/train/objective/next_token/mtp_targets.h"

#include <fmt/format.h>

namespace tessera::train {

MtpBatch ahead_of(const PackedBatch& packed,
                  const nn::Batch& batch,
                  int64_t index,
                  bool reads_ids) {
  const int64_t shift = index + 1;
  MtpBatch out;
  std::vector<int64_t> ids, positions;
  for (const nn::Segment& s : batch.segments) {
    if (s.length <= shift) continue;
    nn::Segment part = s;
    part.begin = std::ssize(out.tokens);
    part.length = s.length - shift;
    out.batch.segments.push_back(part);
    for (int64_t t = s.begin; t < s.begin + part.length; ++t) {
      out.tokens.push_back(t);
      ids.push_back(packed.ids[static_cast<size_t>(reads_ids ? t + shift : t)]);
      out.targets.push_back(packed.targets[static_cast<size_t>(t + shift)]);
      if (out.targets.back() >= 0) ++out.n_targets;
    }
  }
  out.batch.ids_N = at::tensor(ids, at::kLong);
  out.batch.number();
  return out;
}

int64_t targets_ahead(const PackedBatch& packed, int64_t index) {
  int64_t n = 0;
  for (const PackedDocument& piece : packed.pieces)
    for (int64_t t = index + 1; t < piece.length; ++t)
      if (packed.targets[static_cast<size_t>(piece.begin + t)] >= 0) ++n;
  return n;
}

std::string ahead_loss(int64_t index) {
  return fmt::format("predictor_{}", index + 1);
}

}  // namespace tessera::train
