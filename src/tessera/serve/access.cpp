#include "tessera/serve/access.h"

#include <algorithm>
#include <mutex>

#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/sha256.h"

namespace tessera::serve {
namespace {

std::string lowered(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return text;
}

/// "[::1]:8080" without the port.
std::string host_name(const std::string& host) {
  if (host.starts_with('[')) return lowered(host.substr(0, host.find(']') + 1));
  return lowered(host.substr(0, host.rfind(':')));
}

/// As long for every pair of digests.
bool equal(const std::string& a, const std::string& b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0 && a.size() == b.size();
}

}  // namespace

Access::Access(AccessOptions options) : options_(std::move(options)) {
  read_keys();
}

void Access::read_keys() {
  std::vector<std::string> digests;
  if (!options_.key.empty()) digests.push_back(sha256(options_.key));
  if (!options_.key_file.empty()) {
    const std::string file = options_.key_file.string();
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
      fail(ErrorKind::file, "serve", "{}: others may read these keys; expected `chmod 600`", file);
    const std::string text = read_text_file(options_.key_file, size_t{1} << 20);
    size_t keys = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string key = text.substr(begin, end - begin);
      while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
      begin = end + 1;
      if (key.empty() || key.front() == '#') continue;
      digests.push_back(sha256(key));
      ++keys;
    }
    if (keys == 0) fail(ErrorKind::file, "serve", "{} holds no key; expected one a line", file);
  }
  const std::unique_lock lock(mutex_);
  digests_ = std::move(digests);
}

size_t Access::keys() const {
  const std::shared_lock lock(mutex_);
  return digests_.size();
}

void Access::check_origin(const HttpRequest& request) const {
  const std::string host = host_name(request.header("host"));
  static const std::set<std::string> kOwn = {"localhost", "127.0.0.1", "[::1]", ""};
  const bool known = kOwn.contains(host) || std::find(options_.hosts.begin(), options_.hosts.end(),
                                                      host) != options_.hosts.end();
  // a page that has its own name point here would be let in
  if (!known)
    throw ApiError(403, "bad_host",
                   "this server is not called by that name; start it with --allow-host NAME");
  const std::string& origin = request.header("origin");
  if (origin.empty()) {
    // browsers that leave the origin out say where the page is from; to look at something is free
    const std::string site = lowered(request.header("sec-fetch-site"));
    const bool looks = request.method == "GET" || request.method == "HEAD";
    if (!looks && (site == "cross-site" || site == "same-site"))
      throw ApiError(403, "bad_origin", "pages from elsewhere may not ask");
    return;
  }
  const size_t scheme = origin.find("://");
  const bool same = scheme != std::string::npos &&
                    lowered(origin.substr(scheme + 3)) == lowered(request.header("host"));
  if (!same && std::find(options_.cors_origins.begin(), options_.cors_origins.end(), origin) ==
                   options_.cors_origins.end())
    throw ApiError(403, "bad_origin",
                   "pages from elsewhere may not ask; start the server with --cors-origin ORIGIN");
}

void Access::check_type(const HttpRequest& request) {
  std::string type = lowered(request.header("content-type"));
  type.resize(std::min(type.find_first_of("; \t"), type.size()));
  if (type == "application/json") return;
  const bool browser =
      !request.header("origin").empty() || !request.header("sec-fetch-site").empty();
  const bool plain =
      type.empty() || type == "application/x-www-form-urlencoded" || type == "text/plain";
  if (browser || !plain)
    throw ApiError(415, "unsupported_media_type", "Content-Type: expected application/json");
}

int Access::key_of(const HttpRequest& request) const {
  const std::shared_lock lock(mutex_);
  if (digests_.empty()) return -1;
  std::string shown = request.header("x-api-key");
  const std::string& bearer = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (bearer.size() > kBearer.size() && lowered(bearer.substr(0, kBearer.size())) == kBearer)
    shown = bearer.substr(kBearer.size());
  const std::string digest = sha256(shown);
  int found = -1;
  for (size_t i = 0; i < digests_.size(); ++i)
    if (equal(digests_[i], digest)) found = static_cast<int>(i);
  if (found < 0)
    throw ApiError(401, "invalid_api_key",
                   shown.empty() ? "a key is needed: Authorization: Bearer KEY"
                                 : "this key is not known here");
  return found;
}

Headers Access::cors_headers(const HttpRequest& request) const {
  const std::string& origin = request.header("origin");
  if (origin.empty() || std::find(options_.cors_origins.begin(), options_.cors_origins.end(),
                                  origin) == options_.cors_origins.end())
    return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Vary", "Origin"},
          {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
          {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Request-Id"},
          {"Access-Control-Expose-Headers",
           "X-Request-Id, Retry-After, X-Tessera-Ignored, X-Tessera-Warning"},
          {"Access-Control-Max-Age", "600"}};
}

}  // namespace tessera::serve
