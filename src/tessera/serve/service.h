// The server: routes and their handlers on top of sockets (server.h), models (models.h) and the
// scheduler (scheduler.h).
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
  int64_t model_bytes = 0;  // max. bytes of weights in memory; 0 = no limit
  SchedulerOptions engine;
  retrieve::AskerOptions retrieve;       // retrieval (RAG); without an index: none
  retrieve::PassageBudget room;          // default passages per request
  int64_t max_tokens = 32768;            // default of a chat
  bool generation_config = true;         // use the models' own sampling settings as defaults
  bool request_templates = false;        // requests may have chat templates
  bool any_model = false;                // unknown model names get the first model
  bool lenient = false;                  // list unknown fields in a header instead of refusing them
  std::string metrics_compat;            // see Metrics::text
  int workers = 2;                       // threads that parse requests and render prompts
  std::function<void(const Json&)> log;  // one object per request, on the I/O thread
};

struct ServiceState;  // service_state.h

/// The whole HTTP server; owns its threads, models, sockets and metrics. run() blocks. Requests are
/// parsed on workers; all model calls are on the scheduler's thread. Every request gets one
/// response. The constructor throws; later errors become error responses.
class Service {
 public:
  /// Loads the first model. Throws Error for options that cannot be served.
  explicit Service(const ServiceOptions& options);
  ~Service();

  int port() const;
  Metrics& metrics();
  const Routes& routes() const;
  /// Serves until `stop` is requested and all running requests have ended, or the grace period has.
  /// `reload`: keys are read again if it returns true.
  void run(const CancelToken& stop, const std::function<bool()>& reload = {});

 private:
  std::shared_ptr<ServiceState> state_;
};

}  // namespace tessera::serve
