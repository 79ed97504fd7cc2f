// Which form softmax attention takes over the tokens of a call: one table, from what the call
// brings to the form. ops/attention/attention_form.h is the table below it, of what computes the
// scores. Few tokens after a state may go through a decoding step instead (attention_step.h), and
// global tokens with projections of their own are computed in addition.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::nn {

/// What decides on the form.
namespace brings {
enum Bit : uint32_t {
  evicts = 1 << 0,         // keys stay by the weight that they were given (heavy_hitters.h)
  past = 1 << 1,           // rows of a state hold earlier tokens
  past_of_layer = 1 << 2,  // another layer's rows hold them (kv_sharing.h)
  ranks = 1 << 3,          // sequences are split over ranks, with torch operations
  order = 1 << 4,          // texts that are given in an order (permutation language models)
  equal = 1 << 5,          // documents of equal length under one pattern, with torch operations
  packs = 1 << 6,          // one flash attention serves documents of any lengths
};
}  // namespace brings

enum class CallForm {
  heavy,          // each segment among the keys that stay: which ones depends on its own weights
  after_past,     // each segment after what its row holds, draft branches included
  after_layer,    // each segment after what another layer's row holds
  ring_together,  // whole sequences by the ranks of a ring, all in one [B, T, H, D]
  ring,           // the same, one by one
  ordered,        // one by one, each under the order of its own text
  together,       // all documents in one [B, T, H, D]
  packed,         // all documents one after another, [N, H, D]
  apart,          // one by one
};
const char* name_of(CallForm form);

struct CallRow {
  CallForm form;
  uint32_t needs;  // what the call must bring
};
/// By precedence: the first row whose needs are brought is taken.
std::span<const CallRow> call_table();
/// `brought`: brings::Bit's.
CallForm call_form(uint32_t brought);

}  // namespace tessera::nn
