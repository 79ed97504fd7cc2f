#include "tessera/base/version.h"
#include "tessera/serve/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

using Bounds = std::vector<double>;

const Bounds kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                            1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560},
             kPerToken = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                          .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80},
             kRequest = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                         30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680},
             kStep = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
             kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                        500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

struct Row {
  const char* name;
  const char* type;
  const char* help;
  const Bounds* bounds = nullptr;
};

const std::array kTable = {
    Row{"requests_total", "counter", "HTTP requests by route and status"},
    Row{"generations_total", "counter", "Finished sequences by finish reason"},
    Row{"rejected_total", "counter", "Rejected requests by reason"},
    Row{"prompt_tokens_total", "counter", "Prompt tokens"},
    Row{"cached_prompt_tokens_total", "counter", "Prompt tokens taken from the prefix cache"},
    Row{"generated_tokens_total", "counter", "Generated tokens"},
    Row{"draft_tokens_total", "counter", "Draft tokens of speculative decoding"},
    Row{"draft_accepted_tokens_total", "counter", "Accepted draft tokens"},
    Row{"preemptions_total", "counter", "Preempted sequences by reason"},
    Row{"recomputed_tokens_total", "counter", "Tokens recomputed after preemption"},
    Row{"steps_total", "counter", "Forward passes by kind: generation and other work"},
    Row{"memory_trims_total", "counter", "Releases of freed heap memory to the operating system"},
    Row{"memory_bytes", "gauge",
        "Resident memory by use, bytes; the sum is process_resident_memory_bytes to 10 %"},
    Row{"model_loads_total", "counter", "Models loaded"},
    Row{"model_unloads_total", "counter", "Models unloaded"},
    Row{"prefix_cache_hits_total", "counter", "Prompts with a prefix in the prefix cache"},
    Row{"prefix_cache_evictions_total", "counter", "Entries evicted from the prefix cache"},
    Row{"prefix_cache_snapshots_total", "counter", "State snapshots stored in the prefix cache"},
    Row{"requests_running", "gauge", "Running requests"},
    Row{"requests_waiting", "gauge", "Queued requests"},
    Row{"requests_resting", "gauge", "Requests paused by slow clients (backpressure)"},
    Row{"state_reserved_bytes", "gauge",
        "KV cache and recurrent state reserved for running requests, bytes"},
    Row{"state_limit_bytes", "gauge", "Limit of reserved KV cache (--state-memory), bytes"},
    Row{"state_bytes", "gauge", "KV cache pages in use, bytes"},
    Row{"prefix_cache_bytes", "gauge", "Prefix cache, bytes"},
    Row{"models_loaded", "gauge", "Loaded models"},
    Row{"model_bytes", "gauge", "Weights of loaded models, bytes"},
    Row{"connections", "gauge", "Open HTTP connections"},
    Row{"build_info", "gauge", "Version of the server; the value is 1"},
    Row{"time_to_first_token_seconds", "histogram", "Time to first token (TTFT), seconds",
        &kFirstToken},
    Row{"time_per_output_token_seconds", "histogram",
        "Time per output token (TPOT), mean of a request without its first token, seconds",
        &kPerToken},
    Row{"inter_token_seconds", "histogram", "Inter-token latency, seconds", &kPerToken},
    Row{"queue_seconds", "histogram", "Queue time, seconds", &kRequest},
    Row{"request_seconds", "histogram", "Request latency, seconds", &kRequest},
    Row{"step_seconds", "histogram", "Duration of a scheduler step, seconds", &kStep},
    Row{"request_prompt_tokens", "histogram", "Prompt tokens per request", &kTokens},
    Row{"request_generated_tokens", "histogram", "Generated tokens per request", &kTokens},
};

/// Names of the same values in vLLM and llama.cpp.
struct OtherName {
  const char *of, *name, *ours;
};
const std::array kOthers = {
    OtherName{"vllm", "vllm:prompt_tokens_total", "prompt_tokens_total"},
    OtherName{"vllm", "vllm:generation_tokens_total", "generated_tokens_total"},
    OtherName{"vllm", "vllm:num_requests_running", "requests_running"},
    OtherName{"vllm", "vllm:num_requests_waiting", "requests_waiting"},
    OtherName{"vllm", "vllm:num_preemptions_total", "preemptions_total"},
    OtherName{"vllm", "vllm:spec_decode_num_draft_tokens_total", "draft_tokens_total"},
    OtherName{"vllm", "vllm:spec_decode_num_accepted_tokens_total", "draft_accepted_tokens_total"},
    OtherName{"vllm", "vllm:time_to_first_token_seconds", "time_to_first_token_seconds"},
    OtherName{"vllm", "vllm:request_time_per_output_token_seconds",
              "time_per_output_token_seconds"},
    OtherName{"vllm", "vllm:inter_token_latency_seconds", "inter_token_seconds"},
    OtherName{"vllm", "vllm:request_queue_time_seconds", "queue_seconds"},
    OtherName{"vllm", "vllm:e2e_request_latency_seconds", "request_seconds"},
    OtherName{"vllm", "vllm:request_prompt_tokens", "request_prompt_tokens"},
    OtherName{"vllm", "vllm:request_generation_tokens", "request_generated_tokens"},
    OtherName{"llamacpp", "llamacpp:prompt_tokens_total", "prompt_tokens_total"},
    OtherName{"llamacpp", "llamacpp:tokens_predicted_total", "generated_tokens_total"},
    OtherName{"llamacpp", "llamacpp:requests_processing", "requests_running"},
    OtherName{"llamacpp", "llamacpp:requests_deferred", "requests_waiting"},
    OtherName{"llamacpp", "llamacpp:n_decode_total", "steps_total"},
};

const Row& row(std::string_view name) {
  for (const Row& row : kTable)
    if (name == row.name) return row;
  fail(ErrorKind::internal, "metrics", "there is no {}", name);
}

/// `route="/v1/models",code="200"`.
std::string written(Metrics::Labels labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    out += fmt::format("{}{}=\"", out.empty() ? "" : ",", name);
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    out += '"';
  }
  return out;
}

std::string number(double x) {
  return std::isfinite(x) ? fmt::format("{}", x) : x > 0 ? "+Inf" : x < 0 ? "-Inf" : "NaN";
}

void say(std::string& out, const std::string& name, const std::string& labels, double value) {
  out += name;
  if (!labels.empty()) out += "{" + labels + "}";
  out += " " + number(value) + "\n";
}

/// Process metrics with the names of Prometheus client libraries.
void say_process(std::string& out) {
  const auto gauge = [&](const char* name, const char* type, const char* help, double value) {
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
    say(out, name, "", value);
  };
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  gauge("process_cpu_seconds_total", "counter", "CPU time, seconds",
        seconds(usage.ru_utime) + seconds(usage.ru_stime));
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  gauge("process_resident_memory_bytes", "gauge", "Resident memory, bytes",
        static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

Metrics::Metrics() {
  for (const Row& row : kTable) {
    if (row.bounds != nullptr)
      histograms_[row.name].counts.resize(row.bounds->size() + 1);
    else
      values_[row.name];
  }
  set("build_info", 1, {{"version", kVersion}});
}

template <class Count>
void Metrics::count(std::string_view name, const Count& count) {
  const Row& known = row(name);
  const std::lock_guard lock(mutex_);
  try {
    touched_.insert(known.name);
    count(known);
  } catch (const std::bad_alloc&) {
  }
}

void Metrics::add(std::string_view counter, double n, Labels labels) {
  count(counter, [&](const Row& row) { values_[row.name][written(labels)] += n; });
}

void Metrics::set(std::string_view gauge, double value, Labels labels) {
  count(gauge, [&](const Row& row) { values_[row.name][written(labels)] = value; });
}

void Metrics::observe(std::string_view histogram, double value) {
  count(histogram, [&](const Row& row) {
    Histogram& h = histograms_.at(row.name);
    const Bounds& bounds = *row.bounds;
    ++h.counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) -
                                   bounds.begin())];
    h.sum += value;
  });
}

double Metrics::value(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  double sum = 0;
  if (const auto found = values_.find(name); found != values_.end())
    for (const auto& [labels, value] : found->second) sum += value;
  return sum;
}

std::vector<std::string> Metrics::untouched() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const Row& row : kTable)
    if (!touched_.contains(row.name)) out.emplace_back(row.name);
  return out;
}

std::string Metrics::text(std::string_view compat) const {
  std::string out;
  const std::lock_guard lock(mutex_);
  const auto tell = [&](const Row& row, const std::string& name) {
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, row.help, row.type);
    if (row.bounds == nullptr) {
      const auto& values = values_.at(row.name);
      if (values.empty()) say(out, name, "", 0);
      for (const auto& [labels, value] : values) say(out, name, labels, value);
      return;
    }
    const Histogram& h = histograms_.at(row.name);
    double sum = 0;
    for (size_t i = 0; i < h.counts.size(); ++i) {
      sum += h.counts[i];
      const double bound = i < row.bounds->size() ? (*row.bounds)[i] : INFINITY;
      say(out, name + "_bucket", "le=\"" + number(bound) + "\"", sum);
    }
    say(out, name + "_sum", "", h.sum);
    say(out, name + "_count", "", sum);
  };
  for (const Row& row : kTable) tell(row, std::string("tessera_") + row.name);
  for (const OtherName& other : kOthers)
    if (other.of == compat) tell(row(other.ours), other.name);
  say_process(out);
  return out;
}

}  // namespace tessera::serve
