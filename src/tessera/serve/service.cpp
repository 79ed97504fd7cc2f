#include "tessera/serve/service.h"

#include <algorithm>
#include <random>

#include "tessera/serve/service_state.h"

namespace tessera::serve {
namespace {

/// Is one more as long as it lives.
struct Counted {
  explicit Counted(std::atomic<int64_t>& all) : all(all) { ++all; }
  ~Counted() { --all; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::atomic<int64_t>& all;
};

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string fresh_id(const char* kind) {
  static std::mutex mutex;
  static std::mt19937_64 random{std::random_device{}()};
  const std::lock_guard lock(mutex);
  return fmt::format("{}-{:016x}", kind, random());
}

void need(bool can, const ServedModel& model, const char* what) {
  if (can) return;
  throw ApiError(
      501, "model_capability",
      fmt::format("this model {}; it can: {}", what, fmt::join(model.can.names(), ", ")));
}

ServiceState::ServiceState(const ServiceOptions& given)
    : options(given), access(given.access), created(seconds_now()) {}

ServiceState::~ServiceState() {
  // nothing is handed to what is gone: first who takes, then who gives
  pool.reset();
  if (workers) {
    workers->stop();
    workers->join();
  }
  engine.reset();
  server.reset();
}

void ServiceState::refuse(const ExchangePtr& exchange,
                          const std::exception_ptr& error) const noexcept {
  exchange->fail(error);
  if (exchange->status() == 500 && options.log) complain(error);
}

void ServiceState::work(const ExchangePtr& exchange, std::function<void()> answer) {
  auto counted = std::make_shared<Counted>(in_workers);
  boost::asio::post(*workers, [self = shared_from_this(), exchange, answer = std::move(answer),
                               counted]() mutable {
    try {
      answer();
    } catch (...) {
      self->refuse(exchange, std::current_exception());
    }
    counted.reset();
  });
}

void ServiceState::refuse_more() {
  metrics.add("rejected_total", 1, {{"reason", "queue_full"}});
  throw ApiError(429, "queue_full", "too many requests wait already", "", engine->retry_after());
}

void ServiceState::with_model(const ExchangePtr& exchange,
                              const std::string& name,
                              std::function<void(const ServedModelPtr& model)> answer) {
  const ModelEntry& entry = pool->entry(name);
  if (in_loading >= options.server.limits.waiting_requests) refuse_more();
  pool->with(entry, [self = shared_from_this(), exchange, answer = std::move(answer),
                     counted = std::make_shared<Counted>(in_loading)](
                        ServedModelPtr model, std::exception_ptr error) mutable {
    counted.reset();
    try {
      self->work(exchange, [model = std::move(model), error, answer] {
        if (error) std::rethrow_exception(error);
        answer(model);
      });
    } catch (...) {
      self->refuse(exchange, std::current_exception());
    }
  });
}

Exchange::Clock::time_point ServiceState::deadline_of(const ExchangePtr& exchange,
                                                      int64_t timeout_ms) const {
  auto time = options.server.limits.deadline;
  if (timeout_ms > 0) time = std::min(time, std::chrono::milliseconds(timeout_ms));
  return exchange->arrived() + time;
}

Job ServiceState::job_of(const ExchangePtr& exchange,
                         const ServedModelPtr& model,
                         int64_t timeout_ms) const {
  Job job;
  job.model = model;
  job.id = exchange->id();
  job.client = exchange->client();
  job.alive = exchange;
  job.lost = [exchange] { exchange->give_up(); };
  job.gone = &exchange->gone();
  job.arrived = exchange->arrived();
  job.deadline = deadline_of(exchange, timeout_ms);
  return job;
}

void ServiceState::handle(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  try {
    access.check_origin(request);
    for (const auto& [name, value] : access.cors_headers(request))
      exchange->add_header(name, value);
    if (request.method == "OPTIONS") {
      exchange->add_header("Allow", routes.methods_of(request.path) + ", OPTIONS");
      return exchange->answer(204, "", "");
    }
    const Routes::Match match = routes.find(request.method, request.path);
    if (!match.route->open) exchange->key = access.key_of(request);
    if (draining && !match.route->quick)
      throw ApiError(503, "draining", "the server is about to end", "", 10);
    if (request.method == "POST") Access::check_type(request);
    if (match.route->quick) return match.route->answer(exchange, match.id);
    if (in_workers >= options.server.limits.waiting_requests) refuse_more();
    std::erase_if(streams_, [](const auto& stream) { return stream.expired(); });
    streams_.push_back(exchange);
    work(exchange, [match, exchange] { match.route->answer(exchange, match.id); });
  } catch (...) {
    exchange->fail(api_error_of(std::current_exception()));
  }
}

void ServiceState::ended(const Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string route = routes.name_of(request.path);
  metrics.add("requests_total", 1, {{"route", route}, {"code", std::to_string(exchange.status())}});
  if (!options.log) return;
  const Exchange::Counts counts = exchange.counts();
  Json line = {
      {"time", seconds_now()},
      {"id", exchange.id()},
      {"method", request.method.substr(0, 16)},
      {"route", route},
      {"status", exchange.status()},
      {"seconds",
       std::chrono::duration<double>(Exchange::Clock::now() - exchange.arrived()).count()}};
  if (exchange.key >= 0) line["key"] = exchange.key;
  if (!counts.model.empty()) {
    line["model"] = counts.model;
    line["prompt_tokens"] = counts.prompt_tokens;
    line["cached_tokens"] = counts.cached_tokens;
    line["generated_tokens"] = counts.generated_tokens;
    line["first_token_seconds"] = counts.first_token_seconds;
    line["finish"] = counts.finish;
  }
  options.log(line);
}

void ServiceState::tick(const CancelToken& stop, const std::function<bool()>& reload) {
  const auto now = Exchange::Clock::now();
  const Limits& limits = options.server.limits;
  for (const auto& weak : streams_)
    if (const ExchangePtr exchange = weak.lock()) exchange->ping_after(limits.ping_time);
  if (reload && reload()) {
    try {
      access.read_keys();
    } catch (const Error& error) {
      fmt::print(stderr, "tessera: {}; the keys are as they were\n", error.what());
    }
  }
  if (stop.requested() && !draining.exchange(true)) drain_until_ = now + limits.grace;
  if (!draining) return;
  server->close_door();
  if (now >= drain_until_) engine->abort();
  if (server->busy() == 0 || now >= drain_until_ + std::chrono::seconds(2)) server->stop();
}

void ServiceState::add_routes() {
  routes.add({"GET", "/health", "whether the server takes requests",
              [this](const ExchangePtr& exchange, const std::string&) {
                const char* status = draining ? "draining" : loading ? "loading" : "ok";
                exchange->answer(draining || loading ? 503 : 200, "application/json",
                                 Json{{"status", status}}.dump());
              },
              true, true});
  routes.alias("/v1/health");
  routes.add({"GET", "/metrics", "counts and times, as Prometheus reads them",
              [this](const ExchangePtr& exchange, const std::string&) {
                metrics.set("connections", static_cast<double>(server->connections()));
                metrics.set("requests_waiting", static_cast<double>(engine->waiting()));
                metrics.set("requests_running", static_cast<double>(engine->running()));
                exchange->answer(200, "text/plain; version=0.0.4; charset=utf-8",
                                 metrics.text(options.metrics_compat));
              },
              false, true});
  routes.add({"GET", "/openapi.json", "what there is, as OpenAPI",
              [this](const ExchangePtr& exchange, const std::string&) {
                exchange->answer(routes.openapi());
              },
              false, true});
}

Service::Service(const ServiceOptions& options) : state_(std::make_shared<ServiceState>(options)) {
  ServiceState& s = *state_;
  s.engine = std::make_unique<EngineLoop>(options.engine, s.metrics);
  s.pool =
      std::make_unique<ModelPool>(options.entries, options.models, options.model_bytes, s.metrics);
  s.pool->any_name = options.any_model;
  if (!options.retrieve.index.empty())
    s.asker = std::make_unique<const retrieve::Asker>(options.retrieve);
  s.workers = std::make_unique<boost::asio::thread_pool>(std::max(1, options.workers));
  s.add_routes();
  s.add_model_routes();
  s.add_generation_routes();
  s.add_text_routes();
  s.add_encoder_routes();
  s.add_page_routes();
  s.server = std::make_unique<Server>(options.server,
                                      [&s](const ExchangePtr& exchange) { s.handle(exchange); });
  s.server->on_end = [&s](const Exchange& exchange) { s.ended(exchange); };
  const ServedModelPtr first = s.pool->load(s.pool->entries().front());
  if (options.models.speculation.on() && !first->guesses.on())
    fail(ErrorKind::usage, "serve", "{}: {}", first->entry.path,
         first->no_guesses.empty() ? "it writes no text to guess" : first->no_guesses);
  s.loading = false;
}

Service::~Service() {
  // those who wait keep it until their turn comes
  state_->pool.reset();
  state_->workers->stop();
  state_->workers->join();
  state_->engine->abort();
  state_->engine.reset();
}

int Service::port() const {
  return state_->server->port();
}
Metrics& Service::metrics() {
  return state_->metrics;
}
const Routes& Service::routes() const {
  return state_->routes;
}

void Service::run(const CancelToken& stop, const std::function<bool()>& reload) {
  state_->server->run([&] { state_->tick(stop, reload); });
}

}  // namespace tessera::serve
