// What this machine can do at most, on all threads: the peers of kernels whose limit is known.
#pragma once

#include <cstdint>

namespace tessera::bench {

/// Takes `values` of the scans' exponentials of data in the first cache level, rounded down to
/// whole rounds of 2048 for each thread.
void exp_alone(int64_t values);

/// Bytes a second read from 512 MB. Measures for about `seconds`, and gives the best.
double read_rate(double seconds);

/// Reads `bytes`, with prefetches: the peer of products that read them once.
void read_alone(const void* from, int64_t bytes);

/// Bytes a second, read and written, that a copy of 128 MB moves.
double copy_rate(double seconds);

}  // namespace tessera::bench
