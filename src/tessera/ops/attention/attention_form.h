// Which form computes attention: one table, from what a call asks for to the form that serves it.
// The first row that serves all that is asked for, and finds what it needs, is taken.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// What a call asks for beyond softmax(scale q k) v of a causal, open or windowed document.
namespace ask {
enum Bit : uint32_t {
  // of the numbers and where they lie
  gradients = 1 << 0,  // are recorded
  half = 1 << 1,       // 16-bit floats on a CPU
  elsewhere = 1 << 2,  // double, or not on a CPU
  device = 1 << 15,    // not on a CPU, and not double
  // of the scores
  softcap = 1 << 3,
  sinks = 1 << 4,
  distances = 1 << 5,  // a table by distance joins the scores
  bias = 1 << 6,       // a function of queries and keys joins them
  values = 1 << 7,     // a function of the weights joins the output
  dropout = 1 << 8,
  // of what is seen
  pattern = 1 << 9,     // a Visibility defines what is seen
  scattered = 1 << 10,  // and that lies scattered
  far = 1 << 11,        // keys below far_end meet other queries
  gaps = 1 << 12,       // the keys do not follow each other
  // of the documents
  together = 1 << 13,  // several of equal length, [B, T, H, D]
  packed = 1 << 14,    // several of any lengths, one after another, [N, H, D]
};
}  // namespace ask

struct Ask {
  ask::Bit bit;
  std::string_view name, meaning;
};
/// All that a call may ask for: the lowest bit first, each the double of the one before it.
std::span<const Ask> asks();

enum class AttentionForm {
  kernel,             // batch-invariant (attention_kernel)
  kernel_of_weights,  // the same with the weights as a tensor (attention_kernel_of_weights)
  lists,              // every query goes through the list of its keys (scattered_attention.h)
  tiles,              // flash attention (flash_attention.h)
  far_tiles,          // the same with heads twice as wide, for the other queries
  fused,              // torch's fused kernels of a device (fused_attention.h)
  definition,         // attention_plain, by blocks of queries where there are many scores
  apart,              // document by document, by a form of its own
};
const char* name_of(AttentionForm form);

struct AttentionRow {
  AttentionForm form;
  uint32_t serves;     // all that a call may ask for
  uint32_t needs = 0;  // what it must ask for
};
std::span<const AttentionRow> attention_table();

/// What numbers and options ask for; gaps and documents are the caller's to add.
uint32_t asks_of(const Tensor& q, const ScoreOptions& options);
AttentionForm attention_form(uint32_t asks);

/// Whether tiles serve this, whatever form attention() takes: floats on a CPU, no term that is a
/// function, no second set of queries.
bool tiles_serve(const Tensor& q, const ScoreOptions& options);
/// Whether flash_documents computes several documents in one call; patterns do not serve, since
/// their positions are those in one document.
bool tiles_serve_packed(const Tensor& q, const ScoreOptions& options);

}  // namespace tessera::ops
