#include "tessera/ops/attention/attention_form.h"

#include <algorithm>
#include <array>

namespace tessera::ops {
namespace {

constexpr uint32_t kScores = kSoftcap | kSinks | kDistances, kSeen = kPattern | kScattered,
                   kLearning = kGradients | kHalf,
                   kAnything = kLearning | kElsewhere | kScores | kBias | kValues | kDropout |
                               kSeen | kFar | kGaps | kTogether;

constexpr std::array kTable{
    AttentionRow{AttentionForm::kernel, kScores | kBias | kSeen | kFar | kGaps},
    AttentionRow{AttentionForm::kernel_of_weights, kScores | kBias | kValues | kSeen | kGaps},
    AttentionRow{AttentionForm::lists, kLearning | kSeen | kTogether, kScattered},
    AttentionRow{AttentionForm::tiles, kLearning | kScores | kDropout | kTogether | kPacked},
    AttentionRow{AttentionForm::tiles, kLearning | kScores | kDropout | kSeen | kTogether},
    AttentionRow{AttentionForm::far_tiles,
                 kLearning | kScores | kDropout | kSeen | kFar | kTogether},
    AttentionRow{AttentionForm::definition, kAnything},
    AttentionRow{AttentionForm::apart, kAnything | kPacked},
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
  constexpr const char* kNames[] = {"kernel",    "kernel_of_weights", "lists", "tiles",
                                    "far_tiles", "definition",        "apart"};
  return kNames[static_cast<int>(form)];
}

std::span<const AttentionRow> attention_table() {
  return kTable;
}

uint32_t asks_of(const Tensor& q, const ScoreOptions& options) {
  uint32_t asks = 0;
  const auto ask = [&](bool asked, AttentionAsks what) { asks |= asked ? uint32_t{what} : 0; };
  ask(at::GradMode::is_enabled(), kGradients);
  ask(!q.device().is_cpu() || q.scalar_type() == at::kDouble, kElsewhere);
  ask(q.scalar_type() != at::kDouble && q.scalar_type() != at::kFloat, kHalf);
  ask(options.softcap > 0, kSoftcap);
  ask(options.sinks_H.defined(), kSinks);
  ask(options.term.bias_HR.defined(), kDistances);
  ask(options.term.bias != nullptr, kBias);
  ask(options.term.values != nullptr, kValues);
  ask(static_cast<bool>(options.dropout), kDropout);
  ask(options.visibility != nullptr, kPattern);
  ask(options.visibility && options.visibility->scattered(), kScattered);
  ask(options.far_q.defined(), kFar);
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
  return tiles_serve(asks_of(q, options) | kPacked);
}

}  // namespace tessera::ops
