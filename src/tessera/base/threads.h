// The thread pool: every parallel loop of tessera runs here, on the OpenMP runtime that libtorch
// shares. Kernels never create threads.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera {

/// Number of threads of parallel_for; initially all cores available to this process.
int thread_count();
void set_thread_count(int n);

/// Calls body(begin, end) over disjoint ranges that cover [0, n), in parallel if n > grain. Range
/// borders depend on the thread count: results of a body must not. The first exception of a body is
/// rethrown here. Nested calls run serially. Inside a body denormal numbers (float below 2^-126)
/// are flushed to zero: decaying states and weights have many, and a processor may take a hundred
/// cycles for each.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

/// The same with several ranges per thread, scheduled dynamically: for long loops of few items, on
/// cores of different speed.
void parallel_in_turn(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace tessera
