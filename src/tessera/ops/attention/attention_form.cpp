#include "tessera/ops/attention/attention_form.h"

#include <iterator>
#include <algorithm>
#include <array>

namespace tessera::ops {
namespace {

constexpr uint32_t kScores = ask::softcap | ask::sinks | ask::distances,
                   kSeen = ask::pattern | ask::scattered, kLearning = ask::gradients | ask::half,
                   kAnything = kLearning | ask::elsewhere | ask::device | kScores | ask::bias |
                               ask::values | ask::dropout | kSeen | ask::far | ask::gaps |
                               ask::together;

constexpr std::array kAsks{
    Ask{ask::gradients, "gradients", "gradients are recorded"},
    Ask{ask::half, "half", "16-bit floats on a CPU"},
    Ask{ask::elsewhere, "elsewhere", "float64, or not on a CPU"},
    Ask{ask::softcap, "softcap", "soft cap of the scores"},
    Ask{ask::sinks, "sinks", "attention sinks: a score of each head that has no value"},
    Ask{ask::distances, "distances", "a table by distance is added to the scores"},
    Ask{ask::bias, "bias", "a function of queries and keys is added to the scores"},
    Ask{ask::values, "values", "a function of the weights is added to the output"},
    Ask{ask::dropout, "dropout", "dropout of the weights"},
    Ask{ask::pattern, "pattern", "a pattern defines which keys are visible"},
    Ask{ask::scattered, "scattered", "visible keys of the pattern are scattered"},
    Ask{ask::far, "far", "keys below a position have queries of their own"},
    Ask{ask::gaps, "gaps", "positions of the keys have gaps"},
    Ask{ask::together, "together", "several documents of equal length"},
    Ask{ask::packed, "packed", "several documents of any lengths"},
    Ask{ask::device, "device", "not on a CPU, and not float64"},
};
constexpr bool in_order_of_bits() {
  for (size_t i = 0; i < kAsks.size(); ++i)
    if (kAsks[i].bit != uint32_t{1} << i) return false;
  return true;
}
static_assert(in_order_of_bits());
// the last row serves whatever may be asked for
static_assert((kAnything | ask::packed) == (uint32_t{1} << kAsks.size()) - 1);

constexpr std::array kTable{
    AttentionRow{AttentionForm::kernel, kScores | ask::bias | kSeen | ask::far | ask::gaps},
    AttentionRow{AttentionForm::kernel_of_weights,
                 kScores | ask::bias | ask::values | kSeen | ask::gaps},
    AttentionRow{AttentionForm::lists, kLearning | kSeen | ask::together, ask::scattered},
    AttentionRow{AttentionForm::tiles,
                 kLearning | kScores | ask::dropout | ask::together | ask::packed},
    AttentionRow{AttentionForm::tiles, kLearning | kScores | ask::dropout | kSeen | ask::together},
    AttentionRow{AttentionForm::far_tiles,
                 kLearning | kScores | ask::dropout | kSeen | ask::far | ask::together},
    AttentionRow{AttentionForm::fused, kLearning | ask::elsewhere | ask::device | ask::together,
                 ask::device},
    AttentionRow{AttentionForm::definition, kAnything},
    AttentionRow{AttentionForm::apart, kAnything | ask::packed},
};

bool serves(const AttentionRow& row, uint32_t asks) {
  return (asks & ~row.serves) == 0 && (row.needs & ~asks) == 0;
}

bool tiles_serve(uint32_t asks) {
  return std::any_of(kTable.begin(), kTable.end(), [&](const AttentionRow& row) {
    return row.form == AttentionForm::tiles && serves(row, asks);
  });
}

}  // namespace

const char* name_of(AttentionForm form) {
  constexpr const char* kNames[] = {"kernel", "kernel_of_weights", "lists", "tiles", "far_tiles",
                                    "fused",  "definition",        "apart"};
  static_assert(std::size(kNames) == static_cast<size_t>(AttentionForm::apart) + 1);
  return kNames[static_cast<int>(form)];
}

std::span<const Ask> asks() {
  return kAsks;
}

std::span<const AttentionRow> attention_table() {
  return kTable;
}

uint32_t asks_of(const Tensor& q, const ScoreOptions& options) {
  uint32_t asks = 0;
  const auto add = [&](bool asked, ask::Bit what) { asks |= asked ? uint32_t{what} : 0; };
  add(at::GradMode::is_enabled(), ask::gradients);
  add(!q.device().is_cpu() || q.scalar_type() == at::kDouble, ask::elsewhere);
  add(!q.device().is_cpu() && q.scalar_type() != at::kDouble, ask::device);
  add(q.scalar_type() != at::kDouble && q.scalar_type() != at::kFloat, ask::half);
  add(options.softcap > 0, ask::softcap);
  add(options.sinks_H.defined(), ask::sinks);
  add(options.term.bias_HR.defined(), ask::distances);
  add(options.term.bias != nullptr, ask::bias);
  add(options.term.values != nullptr, ask::values);
  add(static_cast<bool>(options.dropout), ask::dropout);
  add(options.visibility != nullptr, ask::pattern);
  add(options.visibility && options.visibility->scattered(), ask::scattered);
  add(options.far_q.defined(), ask::far);
  return asks;
}

AttentionForm attention_form(uint32_t asks) {
  for (const AttentionRow& row : kTable)
    if (serves(row, asks)) return row.form;
  fail(ErrorKind::internal, "attention", "no form serves a call that asks for {:#x}", asks);
}

bool tiles_serve(const Tensor& q, const ScoreOptions& options) {
  return tiles_serve(asks_of(q, options));
}

bool tiles_serve_packed(const Tensor& q, const ScoreOptions& options) {
  return tiles_serve(asks_of(q, options) | ask::packed);
}

}  // namespace tessera::ops
