// What this machine can do at most, on all threads: the peers of kernels whose limit is known.
#pragma once

namespace tessera::bench {

/// Exponentials a second of the scans' exp on data in the first cache level. Measures for about
/// `seconds`.
double exp_rate(double seconds);

/// Bytes a second read from 512 MB.
double read_rate(double seconds);

/// Bytes a second, read and written, that a copy of 128 MB moves.
double copy_rate(double seconds);

}  // namespace tessera::bench
