// WAV (RIFF/WAVE): sampled sound.
//
// Read: PCM of 8, 16, 24 and 32 bits and floats of 32 and 64, any number of channels, the
// extensible form included; chunks of other kinds are skipped. Compressed sound is refused. Errors:
// Error(file), one line. Source: Microsoft, Multimedia Programming Interface 1.0 (1991).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::format {

struct Sound {
  std::string file;            // for messages
  int64_t rate = 0;            // samples of a channel per second
  int64_t channels = 0;        // samples that belong together
  std::vector<float> samples;  // [time, channels]; integers as multiples of 2^-(bits - 1)
};

Sound open_wav(const std::filesystem::path& path);
/// The same from memory; `file` is named in messages.
Sound read_wav(std::span<const std::byte> bytes, std::string_view file);

/// The same with one channel: the mean of all.
Sound mono(Sound sound);

}  // namespace tessera::format
