#include "tessera/serve/access.h"

#include <algorithm>
#include <array>
#include <mutex>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

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

/// "[::1]:8080" without the port and brackets, "Name.:80" as "name".
std::string host_name(const std::string& host) {
  if (host.starts_with('[')) return lowered(host.substr(1, host.find(']') - 1));
  std::string name = lowered(host.substr(0, host.rfind(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

/// Compares digests in constant time.
bool equal(const std::string& a, const std::string& b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0 && a.size() == b.size();
}

}  // namespace

std::vector<std::string> machine_names() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  const std::string whole = lowered(name.data()), first = whole.substr(0, whole.find('.'));
  std::vector<std::string> names;
  if (!first.empty()) names = {whole, first, first + ".local"};
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

bool is_numeric_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), address.data()) == 1;
}

Access::Access(AccessOptions options) : options_(std::move(options)), machine_(machine_names()) {
  for (std::string& host : options_.hosts) host = lowered(host);
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

bool Access::is_known(const std::string& host) const {
  static const std::set<std::string> kOwn = {"localhost", "127.0.0.1", "::1", ""};
  const auto among = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), host) != names.end();
  };
  return kOwn.contains(host) || among(options_.hosts) ||
         (needs_key() && (is_numeric_address(host) || among(machine_)));
}

void Access::check_origin(const HttpRequest& request) const {
  const std::string host = host_name(request.header("host"));
  if (!is_known(host)) {
    const std::string shown =
        Json(host.substr(0, 100)).dump(-1, ' ', true, Json::error_handler_t::replace);
    throw ApiError(403, "bad_host",
                   fmt::format("host name {} not allowed; start the server with --allow-host {}",
                               shown, shown));
  }
  const std::string& origin = request.header("origin");
  if (origin.empty()) {
    // a browser without an Origin header sends Sec-Fetch-Site; reading is allowed
    const std::string site = lowered(request.header("sec-fetch-site"));
    const bool looks = request.method == "GET" || request.method == "HEAD";
    if (!looks && (site == "cross-site" || site == "same-site"))
      throw ApiError(403, "bad_origin", "cross-site request refused");
    return;
  }
  const size_t scheme = origin.find("://");
  const bool same = scheme != std::string::npos &&
                    lowered(origin.substr(scheme + 3)) == lowered(request.header("host"));
  if (!same && std::find(options_.cors_origins.begin(), options_.cors_origins.end(), origin) ==
                   options_.cors_origins.end())
    throw ApiError(403, "bad_origin",
                   "cross-origin request refused; start the server with --cors-origin ORIGIN");
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
    throw ApiError(
        401, "invalid_api_key",
        shown.empty() ? "API key required: Authorization: Bearer KEY" : "invalid API key");
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
