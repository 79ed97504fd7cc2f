// The server: routes and what answers them, over sockets (server.h), models (models.h) and the
// thread that computes (scheduler.h).
#pragma once

#include <functional>
#include <memory>

#include "tessera/retrieve/rag.h"
#include "tessera/serve/access.h"
#include "tessera/serve/scheduler.h"
#include "tessera/serve/models.h"
#include "tessera/serve/routes.h"
#include "tessera/serve/server.h"

namespace tessera::serve {

struct ServiceOptions {
  ServerOptions server;
  AccessOptions access;
  std::vector<ModelEntry> entries;
  ModelOptions models;
  int64_t model_bytes = 0;  // most bytes of weights in memory; 0 = any
  SchedulerOptions engine;
  retrieve::AskerOptions retrieve;       // of passages before questions; no index: none
  retrieve::PassageBudget room;          // of them, where requests do not say
  int64_t max_tokens = 32768;            // of a chat that does not say how many
  bool generation_config = true;         // models say how they are sampled, where requests do not
  bool request_templates = false;        // chats may bring a template of their own
  bool any_model = false;                // a request for a model of another name is answered too
  bool lenient = false;                  // unknown fields are named in a header instead of refused
  std::string metrics_compat;            // see Metrics::text
  int workers = 2;                       // threads that read requests
  std::function<void(const Json&)> log;  // one object for each request, on the I/O thread
};

struct ServiceState;  // service_state.h

class Service {
 public:
  /// Loads the first model. Throws what cannot be as an Error.
  explicit Service(const ServiceOptions& options);
  ~Service();

  int port() const;
  Metrics& metrics();
  const Routes& routes() const;
  /// Serves until `stop` is requested and all that runs has ended, or the time of grace has.
  /// `reload`: keys are read again where it returns true.
  void run(const CancelToken& stop, const std::function<bool()>& reload = {});

 private:
  std::shared_ptr<ServiceState> state_;
};

}  // namespace tessera::serve
