// What the decoding steps of attention mixers share (decode_step.h): the queries of a call, and
// where the keys and values lie that they see.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tessera/kernels/attention/attention.h"
#include "tessera/nn/context.h"
#include "tessera/nn/draft_branches.h"

namespace tessera::nn {

/// Queries that attention takes together: a segment, or one token of a branch of draft tokens.
struct QueryUnit {
  size_t segment;
  int64_t begin, length, position;  // begin: in the call
  std::vector<int64_t> way;         // in the segment, of a branch; else empty
};

/// What all layers of a call share; lists keep their memory from layer to layer.
struct AttentionCalls {
  std::vector<QueryUnit> units;                             // by segment
  std::vector<size_t> first_unit;                           // of each segment, and the end
  int64_t longest = 0;                                      // keys of a segment
  std::vector<std::vector<TokenBuffer::Run>> keys, values;  // by segment, of the current layer
  std::vector<std::vector<kernels::KeySpan>> spans;         // by unit, of that layer
  std::vector<kernels::Attention> calls;                    // by unit, of that layer

  explicit AttentionCalls(const Batch& batch);
  /// Those of a call.
  static std::shared_ptr<AttentionCalls> of(Context& context);
  auto count() const { return static_cast<int64_t>(calls.size()); }
  /// Floats for kernels::attend of `heads` query heads and values of `width` channels.
  int64_t floats(int64_t heads, int64_t width) const;

  /// The entries of a layer in a row: `groups` rows of `width` numbers each, values of
  /// `value_width`; without `values` a value is the first numbers of its key.
  struct Entries {
    const TokenBuffer& keys;
    const TokenBuffer* values;
    int64_t groups, width, value_width;
  };
  /// Finds where those lie that the queries of a segment see, `window` tokens each (0 = all), and
  /// describes them in the calls of its units; on one thread.
  void find(const Segment& segment, size_t index, const Entries& of, int64_t window);
};

/// Whether a step takes a call on these rows: not several new tokens under a window, which may not
/// hold both the oldest visible key and all of them; entries of float32 or fewer bits in this
/// machine's memory.
bool reads_entries(const Batch& batch, const StateRows* rows, int64_t window);

}  // namespace tessera::nn
