#include "tessera/nn/mixer/attention/call_form.h"

#include <array>
#include <iterator>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

// what a row holds comes before how documents lie: a call with a state has no whole documents
constexpr std::array kCallTable{
    CallRow{CallForm::heavy, brings::evicts},
    CallRow{CallForm::after_past, brings::past},
    CallRow{CallForm::after_layer, brings::past_of_layer},
    CallRow{CallForm::ring_together, brings::ranks | brings::equal},
    CallRow{CallForm::ring, brings::ranks},
    CallRow{CallForm::ordered, brings::order},
    CallRow{CallForm::together, brings::equal},
    CallRow{CallForm::packed, brings::packs},
    CallRow{CallForm::apart, 0},
};

}  // namespace

const char* name_of(CallForm form) {
  constexpr const char* kNames[] = {"heavy",   "after_past", "after_layer", "ring_together", "ring",
                                    "ordered", "together",   "packed",      "apart"};
  static_assert(std::size(kNames) == static_cast<size_t>(CallForm::apart) + 1);
  return kNames[static_cast<int>(form)];
}

std::span<const CallRow> call_table() {
  return kCallTable;
}

CallForm call_form(uint32_t brought) {
  for (const CallRow& row : kCallTable)
    if ((row.needs & ~brought) == 0) return row.form;
  fail(ErrorKind::internal, "attention", "no form serves a call that brings {:#x}", brought);
}

}  // namespace tessera::nn
