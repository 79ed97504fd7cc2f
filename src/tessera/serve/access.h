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
  std::vector<std::string> hosts;         // names that the server may be called by
  std::vector<std::string> cors_origins;  // pages from elsewhere that may ask
};

/// For many threads.
class Access {
 public:
  /// Throws Error(file) where the key file cannot be read, is open to others, or holds no key.
  explicit Access(AccessOptions options);

  /// The keys as the file has them now.
  void read_keys();
  bool needs_key() const;

  /// Throws ApiError 403 unless the request names this server, and comes from no foreign page.
  void check_origin(const HttpRequest& request) const;
  /// The number of the key that the request shows, -1 where none is needed. Throws ApiError 401.
  int key_of(const HttpRequest& request) const;
  /// What a page from elsewhere needs to see of the answer; nothing for others.
  Headers cors_headers(const HttpRequest& request) const;

 private:
  AccessOptions options_;
  mutable std::shared_mutex mutex_;
  std::vector<std::string> digests_;  // SHA-256 of the keys
};

}  // namespace tessera::serve
