// The routes: one table dispatches requests and generates /openapi.json.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/serve/exchange.h"

namespace tessera::serve {

struct Route {
  std::string method, path;  // a path that ends with "/{id}" accepts any last segment
  std::string doc;
  /// Answers a request; `id` is the value of "{id}". Exceptions become error responses.
  std::function<void(const ExchangePtr& exchange, const std::string& id)> answer;
  bool open = false;                // no API key required
  bool quick = false;               // answered on the I/O thread, must not block
  std::function<Json()> body = {};  // JSON schema of its body, if any
};

class Routes {
 public:
  void add(Route route) { all_.push_back(std::move(route)); }
  /// Adds the last route under another path.
  void alias(const std::string& path);

  struct Match {
    const Route* route = nullptr;
    std::string id;
  };
  /// Throws ApiError 404 or 405.
  Match find(const std::string& method, const std::string& path) const;
  /// The table's path for a request path, "none" if there is none.
  std::string name_of(const std::string& path) const;
  /// The methods of a path, "" if there is none.
  std::string methods_of(const std::string& path) const;
  const std::vector<Route>& all() const { return all_; }
  Json openapi() const;

 private:
  static bool matches(const Route& route, const std::string& path, std::string& id);
  std::vector<Route> all_;
};

}  // namespace tessera::serve
