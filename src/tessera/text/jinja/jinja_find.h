// Text search in linear time for any input (a naive search is quadratic). Knuth, Morris and Pratt
// 1977.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::jinja {

class Finder {
 public:
  /// `what` must not be empty and must outlive the finder.
  explicit Finder(std::string_view what);
  /// Position of the first `what` at or after `from`; npos if there is none.
  size_t next(std::string_view in, size_t from = 0) const;

 private:
  std::string_view what_;
  std::vector<uint32_t> border_;  // of each prefix: the longest proper prefix that also ends it
};

/// Position of the last `what`; npos if there is none.
size_t find_last(std::string_view in, std::string_view what);
bool contains(std::string_view in, std::string_view what);

}  // namespace tessera::text::jinja
