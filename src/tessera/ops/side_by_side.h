// Rows of a call that have nothing to do with each other: one parallel region for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::ops {

/// Calls body(i) for every i of costs (of any unit, not negative), without gradients: all in one
/// parallel region, but for those so costly that threads would wait for them, which run
/// alone and may use all threads. What body(i) computes must not depend on which, nor write
/// what another one reads.
void side_by_side(const std::vector<int64_t>& costs, const std::function<void(size_t)>& body);

}  // namespace tessera::ops
