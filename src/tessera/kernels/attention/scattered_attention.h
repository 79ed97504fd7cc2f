// Attention where what a query sees lies scattered (Visibility::scattered): each query goes through
// the list of the keys that it sees, in ascending order, so that work grows with these alone. Heads
// of one key-value head with the same list read its keys and values together.
//
// Goals: those of attention.h. A query's bits depend on that query and its list alone, not on the
// heads that share it; memory per thread is that of one list and its scores of 16 heads.
#pragma once

#include "tessera/kernels/attention/attention.h"

namespace tessera::kernels {

/// What attend() (attention.h) does where `visible` is scattered; there are no far queries. It has
/// checked its argument.
void attend_scattered(const Attention& attention);
/// The same of several sequences by a team (attend() in attention.h): every thread calls this with
/// the same calls, of which it takes those that are scattered; no wait at the end.
void attend_scattered(const Team& team, const Attention* calls, int64_t count);

}  // namespace tessera::kernels
