#include "tessera/text/jinja/jinja_find.h"

namespace tessera::text::jinja {

Finder::Finder(std::string_view what) : what_(what), border_(what.size(), 0) {
  for (size_t i = 1, k = 0; i < what.size(); ++i) {
    while (k > 0 && what[i] != what[k]) k = border_[k - 1];
    if (what[i] == what[k]) ++k;
    border_[i] = static_cast<uint32_t>(k);
  }
}

size_t Finder::next(std::string_view in, size_t from) const {
  for (size_t i = from, k = 0; i < in.size(); ++i) {
    if (k == 0) {  // the next byte that may begin it
      i = in.find(what_[0], i);
      if (i == std::string_view::npos) break;
    }
    while (k > 0 && in[i] != what_[k]) k = border_[k - 1];
    if (in[i] == what_[k]) ++k;
    if (k == what_.size()) return i + 1 - k;
  }
  return std::string_view::npos;
}

size_t find_last(std::string_view in, std::string_view what) {
  if (what.empty()) return in.size();
  const std::string backward(in.rbegin(), in.rend()), wanted(what.rbegin(), what.rend());
  const size_t at = Finder(wanted).next(backward);
  return at == std::string_view::npos ? at : in.size() - at - what.size();
}

bool contains(std::string_view in, std::string_view what) {
  return what.empty() || Finder(what).next(in) != std::string_view::npos;
}

}  // namespace tessera::text::jinja
