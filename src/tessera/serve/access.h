// Authentication and access control: API keys, DNS rebinding and cross-origin requests of browsers.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "tessera/serve/http.h"

namespace tessera::serve {

struct AccessOptions {
  std::filesystem::path key_file;         // file with an API key a line; "" = none
  std::string key;                        // one more key; "" = none
  std::vector<std::string> hosts;         // additional allowed host names
  std::vector<std::string> cors_origins;  // allowed cross-origin pages (CORS)
};

/// Names of this machine without a DNS lookup: the host name, without its domain, and that with
/// ".local" (mDNS).
std::vector<std::string> machine_names();
/// True for addresses such as "192.168.0.7" or "fd00::7", which DNS rebinding cannot forge.
bool is_numeric_address(const std::string& host);

/// Checks keys and origins of requests. Thread-safe.
class Access {
 public:
  /// Throws Error(file) if the key file cannot be read, is readable by others, or has no key.
  explicit Access(AccessOptions options);

  /// Reads the key file again.
  void read_keys();
  bool needs_key() const { return keys() > 0; }
  size_t keys() const;

  /// Throws ApiError 403 unless the host name is allowed and the request comes from no foreign
  /// page. A foreign page could point its own name to this address (DNS rebinding). Allowed are
  /// loopback and the names of the options; if keys are required, which such a page does not have,
  /// also numeric addresses and the machine's names.
  void check_origin(const HttpRequest& request) const;
  /// Throws ApiError 415 for a browser's body that is not declared as JSON: pages of other origins
  /// may send forms and plain text without a CORS preflight. Other clients may omit the type or
  /// send that of `curl -d`.
  static void check_type(const HttpRequest& request);
  /// The index of the request's key, -1 if none is required. Throws ApiError 401.
  int key_of(const HttpRequest& request) const;
  /// CORS headers for an allowed cross-origin page; empty for others.
  Headers cors_headers(const HttpRequest& request) const;

 private:
  bool is_known(const std::string& host) const;

  AccessOptions options_;
  std::vector<std::string> machine_;  // names
  mutable std::shared_mutex mutex_;
  std::vector<std::string> digests_;  // SHA-256 of the keys
};

}  // namespace tessera::serve
