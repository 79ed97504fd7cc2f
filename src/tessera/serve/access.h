// Who may ask: keys, and what a browser may be made to do by a page from elsewhere.
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
  std::filesystem::path key_file;         // a key a line; "" = none
  std::string key;                        // one more; "" = none
  std::vector<std::string> hosts;         // further names that the server may be called by
  std::vector<std::string> cors_origins;  // pages from elsewhere that may ask
};

/// Names of this machine, without a look-up: its host name, whole, without its domain, and that
/// with
/// ".local" (mDNS).
std::vector<std::string> machine_names();
/// "192.168.0.7", "fd00::7": what no foreign name can be made to stand for.
bool is_numeric_address(const std::string& host);

/// For many threads.
class Access {
 public:
  /// Throws Error(file) where the key file cannot be read, is open to others, or holds no key.
  explicit Access(AccessOptions options);

  /// The keys as the file has them now.
  void read_keys();
  bool needs_key() const { return keys() > 0; }
  size_t keys() const;

  /// Throws ApiError 403 unless the request names this server, and comes from no foreign page. A
  /// foreign page can have its own name point here (DNS rebinding), and so would be let in: known
  /// are loopback and the names of the options; where a key is needed, which such a page does not
  /// have, numeric addresses and the machine's names too.
  void check_origin(const HttpRequest& request) const;
  /// Throws ApiError 415 for a body that does not say it is JSON, where a browser sends it: a page
  /// from elsewhere may send forms and plain text without being asked about. Others may leave it
  /// out, or say what `curl -d` says.
  static void check_type(const HttpRequest& request);
  /// The number of the key that the request shows, -1 where none is needed. Throws ApiError 401.
  int key_of(const HttpRequest& request) const;
  /// What a page from elsewhere needs to see of the answer; nothing for others.
  Headers cors_headers(const HttpRequest& request) const;

 private:
  bool is_known(const std::string& host) const;

  AccessOptions options_;
  std::vector<std::string> machine_;  // names
  mutable std::shared_mutex mutex_;
  std::vector<std::string> digests_;  // SHA-256 of the keys
};

}  // namespace tessera::serve
