// Search of a text within another in time that is linear in both, whatever they hold (a plain
// search takes the product of their lengths). Knuth, Morris and Pratt 1977.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::jinja {

class Finder {
 public:
  /// `what` is not empty and outlives the finder.
  explicit Finder(std::string_view what);
  /// Where the first `what` at or after `from` begins in `in`; npos where there is none.
  size_t next(std::string_view in, size_t from = 0) const;

 private:
  std::string_view what_;
  std::vector<uint32_t> border_;  // of each prefix: the longest proper prefix that also ends it
};

/// Where the last `what` begins in `in`; npos where there is none.
size_t find_last(std::string_view in, std::string_view what);
bool contains(std::string_view in, std::string_view what);

}  // namespace tessera::text::jinja
