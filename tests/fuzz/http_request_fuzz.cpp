// Requests out of a stream of bytes, which may come in any pieces.
#include "fuzz.h"

#include "tessera/serve/http.h"

using namespace tessera;

namespace {

/// What the reader makes of the bytes, cut to pieces of so many.
std::string requests_of(std::string_view bytes, size_t piece, int& read) {
  serve::Limits limits;
  limits.head_bytes = 2048;
  limits.target_bytes = 256;
  limits.body_bytes = 4096;
  limits.fields = 20;
  serve::RequestReader reader(limits);
  std::string seen;
  try {
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      std::string_view more = bytes.substr(begin, piece);
      while (reader.put(more) == serve::RequestReader::Stage::done) {
        const serve::HttpRequest request = reader.take();
        fuzz::check(request.body.size() <= limits.body_bytes, "a body keeps its limit");
        fuzz::check(request.path.find('\0') == std::string::npos, "no path holds a zero byte");
        seen += request.method + " " + request.path + " " + request.body + "\n";
        ++read;
        more = {};
      }
      fuzz::check(reader.held() <= bytes.size(), "no byte is held twice");
    }
  } catch (const serve::ApiError& error) {
    fuzz::check(error.status() >= 400 && error.status() <= 505, "a refusal has a status");
    seen += std::to_string(error.status());
  }
  return seen;
}

}  // namespace

TESSERA_FUZZ_TARGET(http_request) {
  fuzz::run(
      [&] {
        const std::string_view bytes = fuzz::text_of(input);
        int read = 0, again = 0;
        const std::string whole = requests_of(bytes, std::max<size_t>(1, bytes.size()), read);
        // limits are met at other bytes then, but what is read is the same
        requests_of(bytes, 7, again);
        const std::string bytewise = requests_of(bytes, 1, again);
        const size_t n = std::min(whole.rfind('\n') + 1, bytewise.rfind('\n') + 1);
        fuzz::check(whole.substr(0, n) == bytewise.substr(0, n),
                    "requests do not turn on how they come");
        if (read == 0) fail(ErrorKind::input, "fuzz", "no request");
      },
      {ErrorKind::input});
}
