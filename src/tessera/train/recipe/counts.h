// Upper bounds of counts in recipes. Torch-free.
#pragma once

#include <cstdint>

namespace tessera::train {

/// Tokens of a micro-batch.
constexpr int64_t kMaxTokens = int64_t{1} << 31;
/// Steps, tokens and examples of a run, as numbers of the command line: sums of products with
/// sizes of models fit 64 bits.
constexpr int64_t kMaxCount = int64_t{1} << 40;
/// Threads, as set_thread_count() takes them.
constexpr int64_t kMaxThreads = 4096;

}  // namespace tessera::train
