// What the scans and convolutions share that walk documents channel by channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/ops/documents.h"

namespace tessera::ops {

/// Channels of one unit of work: by the channels alone, so that bits do not depend on threads.
inline constexpr int64_t kChannelGroup = 64;

/// Calls body(document, first channel, one past the last) for every document of every group: the
/// documents of a group one after another, in order, on one thread.
inline void for_channel_groups(int64_t channels,
                               size_t documents,
                               const std::function<void(size_t, int64_t, int64_t)>& body) {
  parallel_for((channels + kChannelGroup - 1) / kChannelGroup, 1, [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < documents; ++i)
      body(i, begin * kChannelGroup, std::min(channels, end * kChannelGroup));
  });
}

/// Where each document's kept states begin, counted in states: one after every `chunk` tokens.
inline std::vector<int64_t> kept_offsets(const std::vector<int64_t>& offsets, int64_t chunk) {
  Lengths chunks;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    chunks.push_back((offsets[i + 1] - offsets[i] + chunk - 1) / chunk);
  return offsets_of(chunks);
}

}  // namespace tessera::ops
