#include "tessera/hub/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"

namespace tessera::hub {

/// Whom a URL speaks to.
struct Origin {
  std::string scheme, host, port;
  bool operator==(const Origin&) const = default;
  bool is_loopback() const {
    in_addr address{};
    return host == "localhost" || host == "[::1]" ||
           (host.starts_with("127.") && inet_pton(AF_INET, host.c_str(), &address) == 1);
  }
};

namespace {

constexpr const char* kHttpWhere = "pull";
constexpr int kMostRedirects = 5;
constexpr size_t kMostErrorBody = 4096, kMostHeaders = 200, kMostHeaderBytes = 16384;

/// The functions of libcurl that are called here.
struct Curl {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
  decltype(&curl_url) url;
  decltype(&curl_url_set) url_set;
  decltype(&curl_url_get) url_get;
  decltype(&curl_url_cleanup) url_cleanup;
  decltype(&curl_free) free;

  static const Curl& instance() {
    static const Curl curl = open();
    return curl;
  }

 private:
  static Curl open() {
    // the same interface under the names that systems give it
    void* library = nullptr;
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"})
      if ((library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
    if (library == nullptr)
      fail(ErrorKind::resource, kHttpWhere,
           "libcurl.so.4 is not installed; install it (Debian, Ubuntu: apt install libcurl4)");
    Curl curl{};
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr)
        fail(ErrorKind::resource, kHttpWhere, "libcurl has no {}; expected version 7.85 or later",
             name);
    };
    find(curl.global_init, "curl_global_init");
    find(curl.easy_init, "curl_easy_init");
    find(curl.easy_setopt, "curl_easy_setopt");
    find(curl.easy_perform, "curl_easy_perform");
    find(curl.easy_getinfo, "curl_easy_getinfo");
    find(curl.easy_cleanup, "curl_easy_cleanup");
    find(curl.easy_reset, "curl_easy_reset");
    find(curl.easy_strerror, "curl_easy_strerror");
    find(curl.slist_append, "curl_slist_append");
    find(curl.slist_free_all, "curl_slist_free_all");
    find(curl.url, "curl_url");
    find(curl.url_set, "curl_url_set");
    find(curl.url_get, "curl_url_get");
    find(curl.url_cleanup, "curl_url_cleanup");
    find(curl.free, "curl_free");
    if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
      fail(ErrorKind::resource, kHttpWhere, "libcurl cannot be initialized");
    return curl;
  }
};

/// A URL as the transfers read it.
class Url {
 public:
  explicit Url(const std::string& text) : handle_(Curl::instance().url()) { set(text); }
  ~Url() { Curl::instance().url_cleanup(handle_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  /// Absolute, or relative to what it was.
  void set(const std::string& text) {
    good_ = Curl::instance().url_set(handle_, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  bool is_web() const {
    const std::string scheme = part(CURLUPART_SCHEME);
    return good_ && (scheme == "http" || scheme == "https") && part(CURLUPART_USER).empty() &&
           part(CURLUPART_PASSWORD).empty();
  }
  std::string text() const { return part(CURLUPART_URL, CURLU_NO_DEFAULT_PORT); }
  Origin origin() const {
    Origin origin{part(CURLUPART_SCHEME), part(CURLUPART_HOST), part(CURLUPART_PORT)};
    for (char& c : origin.host) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return origin;
  }

 private:
  std::string part(CURLUPart which, unsigned flags = CURLU_DEFAULT_PORT) const {
    char* text = nullptr;
    if (Curl::instance().url_get(handle_, which, &text, flags) != CURLUE_OK) return "";
    std::string out(text);
    Curl::instance().free(text);
    return out;
  }

  CURLU* handle_;
  bool good_ = false;
};

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// Errors of the network, which another attempt may not meet.
bool passes(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

/// What one transfer has seen, for libcurl's callbacks.
struct Transfer {
  const HttpRequest* request;
  const CancelToken* cancel;
  HttpAnswer answer;
  size_t header_bytes = 0;
  bool asked = false, ended_here = false, too_long = false;

  bool takes_body() const { return answer.status == 200 || answer.status == 206; }
};

size_t on_header(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  std::string_view line(data, size * count);
  transfer.header_bytes += line.size();
  if (transfer.header_bytes > kMostHeaders * kMostHeaderBytes) return 0;
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    // also of "100 Continue" and of a proxy
    transfer.answer.headers.clear();
    const size_t space = line.find(' ');
    const std::string code(line.substr(std::min(space, line.size() - 1) + 1, 3));
    transfer.answer.status = std::strtol(code.c_str(), nullptr, 10);
    return size * count;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos || transfer.answer.headers.size() >= kMostHeaders) return size * count;
  std::string name(line.substr(0, colon));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  transfer.answer.headers[name] = value;
  return size * count;
}

size_t on_body(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const size_t n = size * count;
  std::string& body = transfer.answer.body;
  const HttpRequest& request = *transfer.request;
  if (!transfer.takes_body()) {
    body.append(data, std::min(n, kMostErrorBody - std::min(body.size(), kMostErrorBody)));
    return n;
  }
  if (!transfer.asked) {
    transfer.asked = true;
    if (request.accept && !request.accept(transfer.answer)) {
      transfer.ended_here = true;
      return 0;
    }
  }
  if (request.sink) {
    if (request.sink(std::as_bytes(std::span(data, n)))) return n;
    transfer.ended_here = true;
    return 0;
  }
  if (body.size() + n > request.most_bytes) {
    transfer.too_long = true;
    return 0;
  }
  body.append(data, n);
  return n;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<const Transfer*>(user);
  return transfer.cancel != nullptr && transfer.cancel->requested() ? 1 : 0;
}

/// Lines of a request, freed with it.
class HeaderLines {
 public:
  ~HeaderLines() { Curl::instance().slist_free_all(list_); }
  HeaderLines() = default;
  HeaderLines(const HeaderLines&) = delete;
  HeaderLines& operator=(const HeaderLines&) = delete;
  void add(const std::string& line) { list_ = Curl::instance().slist_append(list_, line.c_str()); }
  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

}  // namespace

struct HttpClient::State {
  HttpSettings settings;
  Origin origin;
  CURL* handle = nullptr;

  ~State() {
    if (handle != nullptr) Curl::instance().easy_cleanup(handle);
  }

  /// One request without what redirects lead to.
  HttpAnswer once(const HttpRequest& request, const Url& url) {
    const Curl& curl = Curl::instance();
    Transfer transfer{&request, settings.cancel, {}, 0, false, false, false};
    HeaderLines lines;
    lines.add("Accept-Encoding: identity");  // sizes and ranges are those of the file
    lines.add("User-Agent: tessera");
    if (!settings.token.empty() && url.origin() == origin)
      lines.add("Authorization: Bearer " + settings.token);
    if (request.begin > 0) lines.add(fmt::format("Range: bytes={}-", request.begin));
    char reason[CURL_ERROR_SIZE] = "";
    const std::string address = url.text();
    curl.easy_reset(handle);
    curl.easy_setopt(handle, CURLOPT_URL, address.c_str());
    curl.easy_setopt(handle, CURLOPT_HTTPHEADER, lines.get());
    curl.easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
    curl.easy_setopt(handle, CURLOPT_SSL_VERIFYPEER, 1L);
    curl.easy_setopt(handle, CURLOPT_SSL_VERIFYHOST, 2L);
    if (const char* authorities = std::getenv("SSL_CERT_FILE");
        authorities != nullptr && *authorities != '\0')
      curl.easy_setopt(handle, CURLOPT_CAINFO, authorities);
    curl.easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(handle, CURLOPT_ERRORBUFFER, reason);
    curl.easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(settings.connect_seconds * 1000));
    curl.easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(handle, CURLOPT_LOW_SPEED_TIME,
                     std::max(1L, static_cast<long>(settings.stall_seconds)));
    curl.easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
    curl.easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
    curl.easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl.easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl.easy_setopt(handle, CURLOPT_XFERINFODATA, &transfer);
    const CURLcode code = curl.easy_perform(handle);
    HttpAnswer& answer = transfer.answer;
    // a body of no bytes
    if (code == CURLE_OK && transfer.takes_body() && !transfer.asked && request.accept)
      transfer.ended_here = !request.accept(answer);
    if (code == CURLE_OK || transfer.ended_here) return answer;
    if (transfer.too_long) {
      answer.error = fmt::format("more than {} bytes", request.most_bytes);
    } else {
      answer.error = format::printable(*reason != '\0' ? reason : curl.easy_strerror(code), 300);
      answer.may_pass = passes(code);
      answer.unreachable = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT ||
                           code == CURLE_COULDNT_RESOLVE_PROXY;
    }
    return answer;
  }
};

HttpClient::HttpClient(HttpSettings settings) : state_(std::make_unique<State>()) {
  const Url endpoint(settings.endpoint);
  if (!endpoint.is_web())
    fail(ErrorKind::usage, kHttpWhere,
         "HF_ENDPOINT is {}; expected a URL such as https://huggingface.co",
         format::in_quotes(settings.endpoint));
  state_->origin = endpoint.origin();
  if (!settings.token.empty() && state_->origin.scheme != "https" && !state_->origin.is_loopback())
    fail(ErrorKind::usage, kHttpWhere,
         "HF_ENDPOINT {} would get the token unencrypted; expected https://, or "
         "HF_HUB_DISABLE_IMPLICIT_TOKEN=1",
         format::printable(settings.endpoint, 200));
  state_->settings = std::move(settings);
  state_->handle = Curl::instance().easy_init();
  if (state_->handle == nullptr)
    fail(ErrorKind::resource, kHttpWhere, "libcurl gives no connection");
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::get(const HttpRequest& request) {
  Url url(request.url);
  for (int redirects = 0;; ++redirects) {
    HttpAnswer answer = state_->once(request, url);
    const std::string to = answer.header("location");
    if (!answer.error.empty() || !is_redirect(answer.status) || to.empty()) return answer;
    const bool encrypted = url.origin().scheme == "https";
    url.set(to);
    if (!url.is_web() || (encrypted && url.origin().scheme != "https"))
      answer.error = fmt::format("a redirect to {}; expected https://", format::in_quotes(to));
    else if (redirects == kMostRedirects)
      answer.error = fmt::format("more than {} redirects", kMostRedirects);
    else
      continue;
    return answer;
  }
}

std::string url_encoded(std::string_view text, bool slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("-_.~").find(c) != std::string_view::npos ||
                       (slashes && c == '/');
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace tessera::hub
