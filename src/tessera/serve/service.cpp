#include "tessera/serve/service.h"

#include <algorithm>
#include <random>

#include "tessera/base/heap.h"
#include "tessera/base/resident.h"
#include "tessera/ops/block_cache.h"
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

/// A path that nobody knows, for a line of a log.
std::string printable_path(const std::string& path) {
  std::string out = path.substr(0, 200);
  for (char& c : out)
    if (c <= 0x20 || c >= 0x7F) c = '?';
  return out;
}

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
  throw ApiError(400, "model_capability",
                 fmt::format("model does not support {}; supported: {}", what,
                             fmt::join(model.can.names(), ", ")));
}

ServiceState::ServiceState(const ServiceOptions& given)
    : options(given), access(given.access), created(seconds_now()) {}

ServiceState::~ServiceState() {
  end();
}

/// Threads end before anything that they use goes: the one that loads models and the one that
/// computes, which hand work to the workers, then these. What is queued and will never run holds
/// the state itself, and is dropped by hand.
void ServiceState::end() {
  if (pool) pool->stop();
  if (engine) engine->stop();
  if (workers) {
    workers->stop();
    workers->join();
  }
  workers.reset();
  server.reset();
  engine.reset();
  pool.reset();
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
  const int wait = engine->retry_after();
  throw ApiError(
      429, "queue_full",
      fmt::format("request queue is full ({}); retry after {} s", in_workers.load(), wait), "",
      wait);
}

void ServiceState::with_model(const ExchangePtr& exchange,
                              const std::string& name,
                              std::function<void(const ServedModelPtr& model)> answer,
                              int64_t timeout_ms) {
  const ModelEntry& entry = pool->entry(name);
  if (in_loading >= options.server.limits.waiting_requests) refuse_more();
  ModelPool::Wait wait;
  wait.deadline = deadline_of(exchange, timeout_ms);
  wait.disconnected = [exchange] { return exchange->disconnected().requested(); };
  wait.use = [self = shared_from_this(), exchange, answer = std::move(answer),
              counted = std::make_shared<Counted>(in_loading)](ServedModelPtr model,
                                                               std::exception_ptr error) mutable {
    counted.reset();
    try {
      self->work(exchange, [model = std::move(model), error, answer] {
        if (error) std::rethrow_exception(error);
        answer(model);
      });
    } catch (...) {
      self->refuse(exchange, std::current_exception());
    }
  };
  pool->with(entry, std::move(wait));
}

Exchange::Clock::time_point ServiceState::deadline_of(const ExchangePtr& exchange,
                                                      int64_t timeout_ms) const {
  auto time = options.server.limits.deadline;
  if (timeout_ms > 0) time = std::min(time, std::chrono::milliseconds(timeout_ms));
  return exchange->arrived() + time;
}

ScheduledRequest ServiceState::job_of(const ExchangePtr& exchange,
                                      const ServedModelPtr& model,
                                      int64_t timeout_ms) const {
  ScheduledRequest job;
  job.model = model;
  job.id = exchange->id();
  job.client = exchange->client();
  job.alive = exchange;
  job.lost = [exchange] { exchange->give_up(); };
  job.disconnected = &exchange->disconnected();
  job.arrived = exchange->arrived();
  job.deadline = deadline_of(exchange, timeout_ms);
  return job;
}

text::TemplatePoll ServiceState::poll_of(const ExchangePtr& exchange, int64_t timeout_ms) const {
  return [exchange, deadline = deadline_of(exchange, timeout_ms)] {
    if (exchange->disconnected().requested())
      throw ApiError(408, "client_gone", "the client has gone");
    if (Exchange::Clock::now() >= deadline) throw past_deadline();
  };
}

ServedModel::Chats ServiceState::chats_of(const std::string& chat_template,
                                          const ServedModel& model,
                                          bool tools,
                                          const text::TemplatePoll& poll) const {
  if (chat_template.empty()) {
    if (!model.can.chat) throw ApiError(400, "no_chat_template", model.no_chat);
    return model.chats_for(tools);
  }
  if (!options.request_templates)
    serve::refuse("chat_template",
                  "chat_template: this server accepts none in requests; start it with "
                  "--request-templates",
                  "unsupported_parameter");
  need(model.can.completion && model.spec().encoder == nullptr, model, "chat");
  try {
    return model.chats_of(chat_template, "chat_template", poll);
  } catch (const Error& error) {
    serve::refuse("chat_template", error.what(), "template_error");
  }
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
      throw ApiError(503, "draining", "server is shutting down", "", 10);
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
  if (route == "none") line["path"] = printable_path(request.path);
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
  pool->expire();
  trim(now);
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
  if (now >= drain_until_) {
    engine->abort();
    pool->abort();
  }
  if (server->busy() == 0 || now >= drain_until_ + std::chrono::seconds(2)) server->stop();
}

void ServiceState::trim(Exchange::Clock::time_point now) {
  constexpr auto kSeldom = std::chrono::seconds(30);
  constexpr int64_t kMuch = int64_t{128} << 20;
  if (server->busy() > 0 || engine->running() > 0 || engine->waiting() > 0) {
    busy_at_ = now;
    rested_ = false;
    if (now - trimmed_at_ < kSeldom) return;
    trimmed_at_ = now;
    const HeapUse heap = heap_use();
    if (heap.free > std::max(kMuch, heap.in_use)) engine->give_back_memory();
    return;
  }
  // requests come and go between two looks
  const int64_t answered = server->answered();
  if (std::exchange(answered_, answered) != answered) {
    busy_at_ = now;
    rested_ = false;
  }
  if (rested_ || now - busy_at_ < options.server.limits.trim_time) return;
  rested_ = true;
  trimmed_at_ = now;
  engine->give_back_memory();
}

/// Parts that do not overlap. What is in use of heaps and tensors is "other" where it is no state,
/// no prefix cache and no buffer; pages that states share count once.
void ServiceState::measure_memory() {
  const ResidentParts parts = resident_parts();
  const HeapUse heap = heap_use();
  const ops::BlockCacheStats blocks = ops::block_cache_stats();
  const auto live = static_cast<int64_t>(blocks.live_bytes),
             cached = static_cast<int64_t>(blocks.cached_bytes);
  const auto set = [&](const char* kind, int64_t bytes) {
    metrics.set("memory_bytes", static_cast<double>(bytes), {{"kind", kind}});
  };
  int64_t used = heap.in_use + live;
  const auto take = [&](const char* kind, double bytes) {
    const int64_t part = std::min(used, static_cast<int64_t>(bytes));
    used -= part;
    set(kind, part);
  };
  set("program", parts.program);
  set("weights_mapped", parts.files);
  take("states", metrics.value("state_bytes"));
  take("prefix_cache", metrics.value("prefix_cache_bytes"));
  take("buffers", static_cast<double>(server->buffered_bytes()));
  set("other", used);
  set("blocks_free", cached);
  // free pages of heaps, as far as they are resident
  set("heap_free", std::clamp<int64_t>(parts.anonymous - heap.in_use - live - cached, 0,
                                       std::max<int64_t>(0, heap.free)));
}

void ServiceState::add_routes() {
  routes.add({"GET", "/health", "health check: 200 when the server accepts requests, else 503",
              [this](const ExchangePtr& exchange, const std::string&) {
                const char* status = draining ? "draining" : loading ? "loading" : "ok";
                exchange->answer(draining || loading ? 503 : 200, "application/json",
                                 Json{{"status", status}}.dump());
              },
              true, true});
  routes.alias("/v1/health");
  routes.add({"GET", "/metrics", "metrics in Prometheus format",
              [this](const ExchangePtr& exchange, const std::string&) {
                metrics.set("connections", static_cast<double>(server->connections()));
                metrics.set("requests_waiting", static_cast<double>(engine->waiting()));
                metrics.set("requests_running", static_cast<double>(engine->running()));
                measure_memory();
                exchange->answer(200, "text/plain; version=0.0.4; charset=utf-8",
                                 metrics.text(options.metrics_compat));
              },
              false, true});
  routes.add({"GET", "/openapi.json", "API description (OpenAPI)",
              [this](const ExchangePtr& exchange, const std::string&) {
                exchange->answer(routes.openapi());
              },
              false, true});
}

Service::Service(const ServiceOptions& options) : state_(std::make_shared<ServiceState>(options)) {
  ServiceState& s = *state_;
  s.engine = std::make_unique<Scheduler>(options.engine, s.metrics);
  s.pool =
      std::make_unique<ModelPool>(options.entries, options.models, options.model_bytes, s.metrics);
  s.pool->any_name = options.any_model;
  if (!options.retrieve.index.empty())
    s.asker = std::make_unique<const retrieve::RagPipeline>(options.retrieve);
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
  if (options.models.speculation.on() && !first->speculation.on())
    fail(ErrorKind::usage, "serve", "{}: {}", first->entry.path,
         first->speculation_unavailable.empty() ? "it generates no text"
                                                : first->speculation_unavailable);
  s.loading = false;
}

Service::~Service() {
  state_->end();
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
