// Index scores: what a lightning indexer gives the keys of a query (nn/select/indexer.h).
//   I_ts = sum_h w_th max(0, scale q_th . k_s), or scale q_t . k_s of one head without weights
//
// Goals: the scores of a query depend on that query and its keys alone, whatever else a call
// computes; no memory beyond the scores. float32; the last axes are dense.
#pragma once

#include <cstdint>

#include "tessera/base/team.h"

namespace tessera::kernels {

/// Keys [count, D], one after another.
struct IndexKeys {
  const float* k = nullptr;
  int64_t count = 0;
};

struct IndexScores {
  int64_t T = 0, H = 0, D = 0;
  const float* q = nullptr;        // [T, H, D]
  const float* weights = nullptr;  // [T, H]; null: H is 1, and products are the scores
  float scale = 1;
  const IndexKeys* spans = nullptr;  // keys 0, 1, .., ascending
  int64_t n_spans = 0;
  int64_t first = 0;  // query t has scores for keys 0 .. first + t, which are there
  float* out = nullptr;
  int64_t out_stride = 0;  // from one query to the next, at least first + T
};
void index_scores(const IndexScores& scores);
/// The same of several documents by a team: every thread calls this with the same calls, whose keys
/// they share out; no wait at the end.
void index_scores(const Team& team, const IndexScores* calls, int64_t count);

}  // namespace tessera::kernels
