// What the mixers with a memory over segments share. A document falls into segments of equal
// length, counted from its first token; the tokens of a segment see the earlier ones of their own
// segment, and a memory that its predecessors have left. Gradients pass within a segment and stop
// at its memory.
#pragma once

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// Queries of one call that lie in one segment, by position.
struct Stretch {
  int64_t segment = 0;         // where their segment begins
  int64_t begin = 0, end = 0;  // of the queries
};
/// Tokens start .. start + length - 1, cut where segments end.
std::vector<Stretch> stretches(int64_t start, int64_t length, int64_t segment);

/// Neighbouring segments of a batch with the same start and length, which are computed together.
struct EqualSegments {
  size_t first = 0, count = 1;
};
/// One by one where the batch-invariant kernels apply.
std::vector<EqualSegments> equal_segments(const Batch& batch, bool kernels);

/// What all documents of a call share.
struct SegmentCall {
  const Batch& batch;
  const StateRows* rows;
  Tensor q_NHD, x_ND;
  ops::ScoreOptions how;
  WeightDropout dropout;

  BySegment part{batch};

  Tensor x_of(size_t document) const { return part(x_ND, document); }
  RowState* row_of(size_t document) const { return rows != nullptr ? (*rows)[document] : nullptr; }
  /// `how` with the dropout of a group's queries from their token `at` on.
  ops::ScoreOptions dropout_of(const EqualSegments& group, const ops::ScoreOptions& how, int64_t at) const {
    return dropout.in(how, std::span(batch.segments).subspan(group.first, group.count), at);
  }
  Tensor queries_BTHD(const EqualSegments& group) const {
    const Segment& s = batch.segments[group.first];
    const auto n = static_cast<int64_t>(group.count);
    if (n == 1) return part(q_NHD, group.first).unsqueeze(0);
    return q_NHD.narrow(0, s.begin, n * s.length)
        .reshape({n, s.length, q_NHD.size(1), q_NHD.size(2)});
  }
};

/// Attention of B documents alike: q_BTHD at positions from `start`, and what each of them sees,
/// keys at the same positions.
Tensor attend_alike(const Tensor& q_BTHD,
                    const std::vector<std::vector<ops::KeyValues>>& seen,
                    int64_t start,
                    const ops::ScoreOptions& how);

/// Rows from position `first` on, cut at multiples of `segment` where gradients are recorded: that
/// of a window is then as long as the pieces it touches. Of one piece every window's gradient would
/// be as long as the document, and time would grow as T^2.
std::vector<ops::KeyValues> in_pieces(const Tensor& k_SHD,
                                      const Tensor& v_SHD,
                                      int64_t first,
                                      int64_t segment);
/// The queries of every stretch.
std::vector<Tensor> by_stretch(const Tensor& q_BTHD, const std::vector<Stretch>& stretches);

/// The part of `held`, entries at consecutive positions, that lies in [from, to).
std::vector<ops::KeyValues> cut(const std::vector<ops::KeyValues>& held, int64_t from, int64_t to);

/// What a call reads of one document: keys and values by position.
struct Remembered {
  std::vector<ops::KeyValues> live;  // gradients pass to the inputs
  /// The same numbers as memory: gradients reach the projections alone. Empty without gradients.
  std::vector<ops::KeyValues> memory;
  /// Inputs without a gradient at positions from `first`; undefined unless they were asked for.
  Tensor x_SD;
  int64_t first = 0;

  /// Keys and values that a segment sees in [from, to).
  std::vector<ops::KeyValues> seen(int64_t from, const Stretch& stretch) const;
};

/// Keys and values as projections of stored inputs: with gradients they are projected again by the
/// current weights; without, those that were stored along with the inputs are used.
class InputMemory {
 public:
  /// `slot`: the first of three declarations of the state, inputs [D], keys and values [H, K].
  InputMemory(
      const Builder& builder, int64_t n_heads, int64_t head_dim, int64_t segment, size_t slot);
  Tensor keys(const Tensor& x_SD, const Context& context) const { return heads(k_(x_SD, context)); }
  Tensor values(const Tensor& x_SD, const Context& context) const {
    return heads(v_(x_SD, context));
  }
  const ops::Weight& k() const { return *k_.weight; }
  const ops::Weight& v() const { return *v_.weight; }

  /// Adds the inputs of a call that begins at `start` to what the row holds (nullptr: a whole
  /// document) and returns what lies at positions from `first`, at or before their segment.
  Remembered remember(const Tensor& x_TD,
                      int64_t start,
                      int64_t first,
                      RowState* row,
                      bool with_inputs,
                      const Context& context) const;

 private:
  Tensor heads(const Tensor& x) const { return x.reshape({x.size(0), n_heads_, head_dim_}); }
  Remembered projected(const Tensor& x_TD,
                       int64_t start,
                       int64_t first,
                       RowState* row,
                       const Context& context) const;

  int64_t n_heads_, head_dim_, segment_;
  size_t slot_;
  Linear k_, v_;
};

}  // namespace tessera::nn
