// Limits on requests and connections, each an option of `tessera serve`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tessera::serve {

struct Limits {
  // per request
  size_t head_bytes = size_t{16} << 10;
  size_t fields = 100;
  size_t target_bytes = size_t{2} << 10;
  size_t body_bytes = size_t{8} << 20;
  int json_depth = 64;
  size_t json_values = 2'000'000;
  // over all requests
  int64_t connections = 1024;
  int64_t waiting_requests = 256;
  int64_t waiting_tokens = int64_t{1} << 20;
  // times
  std::chrono::milliseconds head_time{10'000};
  std::chrono::milliseconds body_time{30'000};
  std::chrono::milliseconds idle_time{75'000};
  std::chrono::milliseconds write_time{30'000};  // without a byte accepted
  std::chrono::milliseconds ping_time{15'000};   // silence in an event stream before a ping
  std::chrono::milliseconds deadline{600'000};   // of a request, unless it sets a shorter one
  std::chrono::milliseconds grace{30'000};       // for running requests at shutdown
  std::chrono::milliseconds trim_time{
      5'000};  // idle time before freed memory is returned to the system
  // backpressure for streams whose client reads slowly
  size_t send_buffer = size_t{128} << 10;  // socket buffer; the system doubles it
  size_t merge_bytes = size_t{64} << 10;   // above this, events are buffered and merged
  size_t rest_bytes =
      size_t{256} << 10;  // above this, buffered events included, its sequences pause
};

}  // namespace tessera::serve
