// First-order linear recurrences, one a channel, over one sequence, with their backward pass.
// float32.
//   h_t = a_t h_{t-1} + b_t
// Lanes are channels: a step's bits depend on the state and that step alone.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// All arrays are dense, the last axis fastest.
struct ChannelScan {
  int64_t T = 0, W = 0;
  const float* a = nullptr;  // [T, W]
  const float* b = nullptr;  // [T, W]
  float* state = nullptr;    // [W], read and replaced
  float* y = nullptr;        // [T, W]: h
};
void channel_scan(const ChannelScan& scan);
/// Channels [begin, end) alone, on the calling thread.
void channel_scan(const ChannelScan& scan, int64_t begin, int64_t end);

/// Gradients of sum(y * dy), and of what else reads the last state.
struct ChannelScanGradient {
  int64_t T = 0, W = 0;
  const float* a = nullptr;      // [T, W]
  const float* y = nullptr;      // [T, W]: h
  const float* dy = nullptr;     // [T, W]
  const float* start = nullptr;  // [W], the state before the first token; null = zeros
  float* da = nullptr;           // [T, W]
  float* db = nullptr;           // [T, W]
  float* dstate = nullptr;       // [W], of the last state, replaced by that of the first
};
/// Channels [begin, end), on the calling thread.
void channel_scan_backward(const ChannelScanGradient& gradient, int64_t begin, int64_t end);

}  // namespace tessera::kernels
