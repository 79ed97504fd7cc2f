#include "tessera/serve/reasoning.h"

#include <algorithm>

#include "tessera/serve/tags.h"

namespace tessera::serve {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

}  // namespace

ReasoningSplitter::ReasoningSplitter(bool opened, bool splits)
    : place_(!splits  ? Place::behind
             : opened ? Place::within
                      : Place::before),
      fresh_(splits && opened) {}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::push(std::string_view text, bool last) {
  std::vector<Piece> out;
  held_ += text;
  const auto give = [&](size_t n) {
    size_t begin = 0;
    if (fresh_) begin = std::min(held_.find_first_not_of(kSpace), n);
    if (begin < n) {
      fresh_ = false;
      out.push_back({place_ == Place::within, held_.substr(begin, n - begin)});
    }
    held_.erase(0, n);
  };
  if (place_ == Place::before) {
    const size_t begin = held_.find_first_not_of(kSpace);
    const std::string_view rest =
        begin == std::string::npos ? std::string_view() : std::string_view(held_).substr(begin);
    if (!last && rest.size() < kOpen.size() && kOpen.starts_with(rest)) return out;
    if (rest.starts_with(kOpen)) {
      held_.erase(0, begin + kOpen.size());
      place_ = Place::within;
      fresh_ = true;
    } else {
      place_ = Place::behind;
    }
  }
  if (place_ == Place::within) {
    if (const size_t end = held_.find(kClose); end != std::string::npos) {
      give(end);
      held_.erase(0, kClose.size());
      place_ = Place::behind;
      fresh_ = true;
    } else {
      give(held_.size() - (last ? 0 : beginning_of(kClose, held_)));
    }
  }
  if (place_ == Place::behind) give(held_.size());
  return out;
}

}  // namespace tessera::serve
