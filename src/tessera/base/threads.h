// One owner of threads: every parallel loop of tessera runs here, on the OpenMP runtime that
// libtorch shares. Kernels never spawn threads of their own.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera {

/// Number of threads parallel_for uses; at first all cores this process may run on.
int thread_count();
void set_thread_count(int n);

/// Calls body(begin, end) over disjoint ranges that cover [0, n), in parallel when n > grain.
/// Range borders depend on the thread count: a body must not let its result depend on them.
/// The first exception thrown by a body is rethrown here. Nested calls run serially. Inside a body
/// denormal numbers (float below 2^-126) are zeros: fading states and weights are full of them, and
/// a processor may take a hundred cycles for each.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

/// The same in several ranges a thread, taken from the first on whenever a thread is free: for long
/// loops of few items, on cores that are not equally fast.
void parallel_in_turn(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace tessera
