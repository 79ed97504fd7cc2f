// How much the server takes of anybody, each of it an option of `tessera serve`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tessera::serve {

struct Limits {
  // of a request
  size_t head_bytes = size_t{16} << 10;
  size_t fields = 100;
  size_t target_bytes = size_t{2} << 10;
  size_t body_bytes = size_t{8} << 20;
  int json_depth = 64;
  size_t json_values = 2'000'000;
  // of all of them
  int64_t connections = 1024;
  int64_t waiting_requests = 256;
  int64_t waiting_tokens = int64_t{1} << 20;
  // of time
  std::chrono::milliseconds head_time{10'000};
  std::chrono::milliseconds body_time{30'000};
  std::chrono::milliseconds idle_time{75'000};
  std::chrono::milliseconds write_time{30'000};  // without a byte taken
  std::chrono::milliseconds ping_time{15'000};   // of silence in a stream of events
  std::chrono::milliseconds deadline{600'000};   // of a request, unless it asks for less
  std::chrono::milliseconds grace{30'000};       // for what runs when the server is to end
  std::chrono::milliseconds trim_time{5'000};    // of rest, until freed memory is given back
  // of a stream that its reader does not take
  size_t send_buffer = size_t{128} << 10;  // what the system takes of it; it doubles this
  size_t behind_bytes = size_t{64} << 10;  // events wait beyond this, and are joined
  size_t rest_bytes = size_t{256} << 10;   // beyond this with those that wait, its texts rest
};

}  // namespace tessera::serve
