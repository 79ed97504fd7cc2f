// Files that TensorBoard reads (events.out.tfevents.*), of scalars. Torch-free.
//
// A file is a list of records: uint64 length, masked CRC of these eight bytes, that many bytes,
// their masked CRC; all little-endian. The CRC is CRC-32C, masked by a rotation and a constant
// (TFRecord). The bytes are a protocol buffer tensorflow.Event: wall_time (1, double), step (2,
// int64), and file_version (3, text) of the first, summary (5) of the others, whose values (1) are
// tag (1, text) and simple_value (2, float).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

uint32_t crc32c(std::string_view bytes);

/// The record that a file begins with.
std::string first_event(double wall_time);
/// One with values of a step, by their tags.
std::string scalars_event(double wall_time,
                          int64_t step,
                          const std::vector<std::pair<std::string, double>>& values);

}  // namespace tessera::train
