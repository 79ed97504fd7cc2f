// What there is at which path: the one table that answers requests and describes itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/serve/exchange.h"

namespace tessera::serve {

struct Route {
  std::string method, path;  // a path that ends with "/{id}" takes whatever stands there
  std::string doc;
  /// Answers; `id` is what stands for "{id}". What it throws is told to the client.
  std::function<void(const ExchangePtr& exchange, const std::string& id)> answer;
  bool open = false;                // to everybody, without a key
  bool quick = false;               // answered on the I/O thread, in no time
  std::function<Json()> body = {};  // the schema of its body, where it has one
};

class Routes {
 public:
  void add(Route route) { all_.push_back(std::move(route)); }
  /// The same under another path.
  void alias(const std::string& path);

  struct Match {
    const Route* route = nullptr;
    std::string id;
  };
  /// Throws ApiError 404 or 405.
  Match find(const std::string& method, const std::string& path) const;
  /// The methods of a path, "" where nothing is there.
  std::string methods_of(const std::string& path) const;
  const std::vector<Route>& all() const { return all_; }
  Json openapi() const;

 private:
  static bool matches(const Route& route, const std::string& path, std::string& id);
  std::vector<Route> all_;
};

}  // namespace tessera::serve
