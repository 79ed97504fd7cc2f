// The files of the page, as they are compiled in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::serve {

struct PageFile {
  std::string path, type;
  std::string_view body;
};
const std::vector<PageFile>& page_files();

/// What a browser may do with the page: no other host, no inline code, no frame around it.
inline constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace tessera::serve
