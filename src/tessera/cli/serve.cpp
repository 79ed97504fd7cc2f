// Models over HTTP.
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "tessera/base/heap.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/decoding_flags.h"
#include "tessera/cli/device_flag.h"
#include "tessera/ops/device_memory.h"
#include "tessera/cli/speculation_flags.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/product_flags.h"
#include "tessera/cli/retrieve_flags.h"
#include "tessera/hub/find_model.h"
#include "tessera/text/chat/chat_formats.h"
#include "tessera/serve/service.h"

namespace tessera::cli {
namespace serve_verb {

struct ServeArgs {
  LoadFlags loading;
  std::vector<std::string> models, aliases, adapters;
  serve::ServiceOptions service;
  SpeculationFlags speculation;
  KvFlags kv;
  ProductFlags products;
  DeviceFlag device;
  RetrieveFlags retrieve;
  std::string template_file, key, generation_config = "model", log = "text",
                                  template_date = "today";
  int64_t context = 0, cache_mib = 256, model_mib = 0, state_mib = 0;
  int64_t queue_tokens = int64_t{1} << 20, body_mib = 8;
  double deadline = 600, grace = 30, keep_alive = 0;
  bool jinja = false;
  int threads = 0;
};

std::atomic<bool> reload_keys{false};

/// Free MiB of the device's memory; of the host's for the CPU, and for a device that does not
/// report it; one line names it if a default is taken from it.
int64_t available_mib(at::Device device, bool needed) {
  if (const std::optional<ops::DeviceMemory> memory = ops::memory_of(device))
    return memory->free >> 20;
  if (!device.is_cpu() && needed)
    fmt::print(stderr,
               "tessera: {} does not report its free memory; --model-memory and --state-memory are "
               "taken from the host's\n",
               device.str());
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (int64_t kib = 0; file >> name >> kib; file.ignore(100, '\n'))
    if (name == "MemAvailable:") return kib >> 10;
  return 4096;
}

/// "folder/model.gguf" is asked for as "model", a folder by its name.
std::string name_of(const std::string& path) {
  std::filesystem::path named = std::filesystem::absolute(path).lexically_normal();
  if (named.filename().empty()) named = named.parent_path();
  const std::string extension = named.extension();
  return extension == ".gguf" || extension == ".bin" ? named.stem().string()
                                                     : named.filename().string();
}

std::vector<serve::ModelEntry> entries_of(const ServeArgs& o) {
  std::vector<serve::ModelEntry> entries;
  const auto add = [&](serve::ModelEntry entry) {
    for (const serve::ModelEntry& other : entries)
      if (other.id == entry.id)
        fail(ErrorKind::usage, "serve",
             "two models are called \"{}\"; give them names: --alias NAME, once for each model",
             entry.id);
    entries.push_back(std::move(entry));
  };
  if (!o.aliases.empty() && o.aliases.size() != o.models.size())
    fail(ErrorKind::usage, "serve", "{} names for {} models; expected --alias once for each",
         o.aliases.size(), o.models.size());
  for (size_t i = 0; i < o.models.size(); ++i) {
    const hub::FoundModel found = hub::find_model(o.models[i]);
    const std::string name = found.name.empty() ? name_of(found.path) : found.name;
    add({.id = o.aliases.empty() ? name : o.aliases[i], .path = found.path});
  }
  const size_t models = entries.size();
  for (const std::string& text : o.adapters) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      fail(
          ErrorKind::usage, "serve",
          "--adapter {}: expected NAME=FOLDER, or MODEL:NAME=FOLDER where there are several models",
          text);
    std::string name = text.substr(0, equals);
    const serve::ModelEntry* base = &entries[0];
    if (const size_t colon = name.find(':'); colon != std::string::npos) {
      const auto found =
          std::find_if(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(models),
                       [&](const auto& e) { return e.id == name.substr(0, colon); });
      if (found == entries.begin() + static_cast<std::ptrdiff_t>(models))
        fail(ErrorKind::usage, "serve", "--adapter {}: there is no model \"{}\"", text,
             name.substr(0, colon));
      base = &*found;
      name = name.substr(colon + 1);
    } else if (models > 1) {
      fail(ErrorKind::usage, "serve",
           "--adapter {}: {} models, and none is named; expected MODEL:NAME=FOLDER", text, models);
    }
    const std::string folder = hub::find_model(text.substr(equals + 1)).path, base_id = base->id,
                      path = base->path;
    // one name given twice: the products add up
    const auto same =
        std::find_if(entries.begin() + static_cast<std::ptrdiff_t>(models), entries.end(),
                     [&](const auto& e) { return e.id == name && e.of == base_id; });
    if (same != entries.end())
      same->adapters.push_back(folder);
    else
      add({.id = name, .path = path, .adapters = {folder}, .of = base_id});
  }
  return entries;
}

/// As many connections as there are files left for.
void settle_connections(serve::Limits& limits) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  constexpr int64_t kOthers = 64;
  const auto most = static_cast<int64_t>(std::min<rlim_t>(files.rlim_cur, 1 << 30)) - kOthers;
  if (limits.connections <= most) return;
  limits.connections = std::max<int64_t>(1, most);
  fmt::print(stderr, "tessera: maximum connections {}, by the limit of open files (ulimit -n)\n",
             limits.connections);
}

std::string url_of(const std::string& host, int port) {
  const bool six = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", six ? "[" + host + "]" : host, port);
}

/// The addresses of this machine's interfaces, those that name one link alone left out.
std::vector<std::string> own_addresses(bool six) {
  std::vector<std::string> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const int family = at->ifa_addr != nullptr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && !(six && family == AF_INET6)) continue;
    std::array<char, NI_MAXHOST> text{};
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(at->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    if (std::strchr(text.data(), '%') == nullptr) out.emplace_back(text.data());
  }
  freeifaddrs(list);
  return out;
}

/// What a server that can be reached from elsewhere is called by.
std::vector<std::string> urls_of(const serve::ServiceOptions& s, int port) {
  std::vector<std::string> hosts;
  const bool any = s.server.host == "0.0.0.0" || s.server.host == "::";
  hosts = any ? own_addresses(s.server.host == "::") : std::vector{s.server.host};
  for (const std::string& name : serve::machine_names()) hosts.push_back(name);
  for (const std::string& name : s.access.hosts)
    if (name != s.server.host) hosts.push_back(name);
  std::vector<std::string> urls;
  for (const std::string& host : hosts) urls.push_back(url_of(host, port));
  return urls;
}

int serve(ServeArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  serve::ServiceOptions& s = o.service;
  o.device.check();
  serve::Limits& limits = s.server.limits;
  limits.waiting_tokens = o.queue_tokens;
  limits.body_bytes = static_cast<size_t>(o.body_mib) << 20;
  limits.deadline = std::chrono::milliseconds(static_cast<int64_t>(o.deadline * 1000));
  limits.grace = std::chrono::milliseconds(static_cast<int64_t>(o.grace * 1000));
  settle_connections(limits);
  o.speculation.check();
  s.engine.limits = limits;
  s.entries = entries_of(o);
  s.models.device = o.device.device([&] {
    int64_t bytes = 0;
    for (const serve::ModelEntry& entry : s.entries)
      bytes += device_bytes_of(entry.path, o.loading.options());
    return bytes;
  });
  const int64_t available = available_mib(s.models.device, o.model_mib == 0 || o.state_mib == 0);
  s.model_bytes = (o.model_mib > 0 ? o.model_mib : available / 2) << 20;
  s.engine.state_bytes = (o.state_mib > 0 ? o.state_mib : available / 4) << 20;
  s.generation_config = o.generation_config == "model";
  s.models.loading = o.loading.options();
  s.models.arithmetic = o.products.arithmetic();
  s.models.speculation = o.speculation.load(o.loading.options(), o.products.arithmetic(), o.device);
  if (const model::Model* draft = s.models.speculation.draft; draft != nullptr)
    s.model_bytes = std::max<int64_t>(1, s.model_bytes - draft->weights().bytes());
  s.models.context = o.context;
  s.models.cache_bytes = o.cache_mib << 20;
  s.models.keep_alive = std::chrono::milliseconds(static_cast<int64_t>(o.keep_alive * 1000));
  s.retrieve = o.retrieve.asker(o.loading);
  s.room = o.retrieve.room;
  if (const auto named = text::chat_format_source(o.template_file))
    s.models.chat_template = *named;
  else if (!o.template_file.empty())
    s.models.chat_template = read_text_file(o.template_file, size_t{1} << 20);
  s.models.kv = [&o](const model::Model& model) {
    KvFlags own = o.kv;
    own.check(model, o.products);
    return own.options();
  };
  if (const char* key = std::getenv("TESSERA_API_KEY"); key != nullptr) s.access.key = key;
  if (!o.key.empty()) {
    s.access.key = o.key;
    fmt::print(stderr,
               "tessera: --api-key can be seen by other users in the list of processes; "
               "TESSERA_API_KEY or --api-key-file is safer\n");
  }
  const bool loopback =
      s.server.host == "localhost" || s.server.host == "::1" || s.server.host.starts_with("127.");
  if (!loopback && s.access.key.empty() && s.access.key_file.empty())
    fail(ErrorKind::usage, "serve",
         "{} can be reached from other machines, and there is no API key; expected --api-key-file "
         "FILE (a key a line), or TESSERA_API_KEY",
         s.server.host);
  s.access.hosts.push_back(s.server.host);
  if (o.template_date != "today")
    s.models.clock = text::template_clock(o.template_date, "--template-date");
  s.models.say = [json = o.log == "json"](const std::string& line) {
    std::fputs(json ? (Json{{"note", line}}.dump() + "\n").c_str()
                    : fmt::format("tessera: {}\n", line).c_str(),
               stderr);
  };
  if (o.log == "json")
    s.log = [](const Json& line) {
      fmt::print(stderr, "{}\n", line.dump(-1, ' ', true, Json::error_handler_t::replace));
    };
  else if (o.log == "text")
    s.log = [](const Json& line) {
      fmt::print(stderr, "{} {} {} {:.3f} s{}\n", line["method"].get<std::string>(),
                 line.value("path", line["route"].get<std::string>()), line["status"].get<int>(),
                 line["seconds"].get<double>(),
                 line.contains("model")
                     ? fmt::format(", {}: {} + {} tokens, {}", line["model"].get<std::string>(),
                                   line["prompt_tokens"].get<int64_t>(),
                                   line["generated_tokens"].get<int64_t>(),
                                   line["finish"].get<std::string>())
                     : std::string());
    };
  limit_heaps(1);
  serve::Service service(s);
  std::signal(SIGHUP, [](int) { reload_keys = true; });
  fmt::print("{}\n", url_of(s.server.host, service.port()));
  flush_output();
  std::vector<std::string> names;
  for (const auto& entry : s.entries) names.push_back(entry.id);
  // as of a line of the log: that it cannot be written is no reason to end
  std::fputs(fmt::format("tessera: serving {} at {}/v1. Ctrl-C: graceful shutdown, twice: "
                         "immediate\n",
                         fmt::join(names, ", "), url_of(s.server.host, service.port()))
                 .c_str(),
             stderr);
  if (!loopback)
    std::fputs(fmt::format("tessera: reachable as {}; --allow-host NAME adds a host name\n",
                           fmt::join(urls_of(s, service.port()), ", "))
                   .c_str(),
               stderr);
  service.run(cancel_token(), [] { return reload_keys.exchange(false); });
  fail(ErrorKind::cancelled, "serve", "stopped on request");
}

}  // namespace serve_verb

std::function<int()> add_serve(CLI::App& app) {
  using namespace serve_verb;
  auto o = std::make_shared<ServeArgs>();
  serve::ServiceOptions& s = o->service;
  serve::Limits& limits = s.server.limits;
  group(app, "Models");
  app.add_option("model,-m,--model", o->models,
                 "models: folders or GGUF files; the first is loaded at start, others on first "
                 "request")
      ->required();
  app.add_option("--alias,-a,--served-model-name", o->aliases,
                 "model name in the API, once per model")
      ->allow_extra_args(false);
  app.add_option("--adapter,--lora", o->adapters,
                 "NAME=FOLDER serves the model with a LoRA adapter as NAME; MODEL:NAME=FOLDER of "
                 "several models. One NAME twice: both adapters")
      ->allow_extra_args(false);
  app.add_flag("--any-model", s.any_model, "serve unknown model names by the first model");
  o->loading.add(app);
  group(app, "Network and access");
  app.add_option("--host", s.server.host, "address to bind")->capture_default_str();
  app.add_option("--port", s.server.port, "port; 0 = any free (it is printed)")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option(
         "--allow-host", s.access.hosts,
         "further host name to accept (DNS-rebinding protection); loopback, --host and, with a "
         "key, numeric addresses and this machine's names are accepted without; repeatable")
      ->allow_extra_args(false);
  app.add_option("--api-key", o->key,
                 "API key that clients must send. Other users of this machine can see it in the "
                 "list of processes: TESSERA_API_KEY or --api-key-file is safer");
  app.add_option("--api-key-file", s.access.key_file,
                 "file of API keys, one a line, chmod 600; SIGHUP reloads; or TESSERA_API_KEY");
  app.add_option("--cors-origin", s.access.cors_origins,
                 "origin allowed by CORS (https://example.org); repeatable")
      ->allow_extra_args(false);
  group(app, "Scheduling and memory");
  app.add_option("--parallel,--max-num-seqs", s.engine.parallel,
                 "maximum concurrent sequences; further ones queue")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--model-memory", o->model_mib,
                 "maximum MiB of loaded weights (LRU eviction); 0 = half of free memory, on a GPU "
                 "of the GPU's")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--state-memory", o->state_mib,
                 "maximum MiB of KV cache of all running requests, further ones queue; 0 = a "
                 "quarter of free memory, on a GPU of the GPU's")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--prefix-cache", o->cache_mib, "prefix cache per model, MiB; 0 = off")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app.add_option("--keep-alive", o->keep_alive, "unload models after N idle seconds; 0 = never")
      ->capture_default_str()
      ->check(not_negative());
  app.add_flag("--priorities", s.engine.priorities,
               "priority scheduling: requests may set priority -10 to 10, lower first, with "
               "preemption");
  app.add_option("--step-ms", s.engine.step_ms,
                 "chunked prefill: prefill time per step while others decode, ms; else four times "
                 "that")
      ->capture_default_str()
      ->check(positive());
  group(app, "API defaults");
  add_number(app, infer::decoding_field("context"), o->context);
  app.add_option("--max-tokens,-n,--n-predict,--predict", s.max_tokens,
                 "default max_tokens of a chat")
      ->capture_default_str()
      ->check(positive());
  app.add_option(
      "--chat-template,--chat-template-file", o->template_file,
      "Jinja file, or chatml, llama3, gemma, zephyr, in place of the models' chat templates");
  app.add_flag("--jinja", o->jinja, "no effect: chat templates are always used");
  std::vector<std::string> tool_formats = {"auto", "generic"};
  for (const text::ToolCallFormat& format : text::tool_call_formats())
    tool_formats.push_back(format.name);
  app.add_option("--tool-format", s.models.tool_format,
                 "tool-call format; auto = from the chat template, else the generic tool prompt "
                 "(tools described in the prompt, calls as JSON between <tool_call> tags)")
      ->capture_default_str()
      ->check(CLI::IsMember(tool_formats));
  app.add_option("--template-date", o->template_date,
                 "date that strftime_now() of chat templates gives: today (of each request), none "
                 "(undefined), YYYY-MM-DD")
      ->capture_default_str();
  app.add_flag("--request-templates", s.request_templates,
               "accept chat_template in requests (/v1/chat/completions, /apply-template)");
  app.add_option("--generation-config", o->generation_config,
                 "model = unset sampling parameters from generation_config.json; none = API "
                 "defaults")
      ->capture_default_str()
      ->check(CLI::IsMember({"model", "none"}));
  app.add_option("--pooling", s.models.pooling,
                 "pooling of decoder embeddings; encoders use their own")
      ->check(CLI::IsMember({"mean", "cls", "max", "last"}));
  app.add_flag("--lenient", s.lenient,
               "ignore unknown parameters, also of messages and other nested objects, named in "
               "X-Tessera-Ignored");
  group(app, "Speculative decoding");
  o->speculation.add(app);
  group(app, "KV cache");
  o->kv.add(app);
  group(app, "Retrieval (RAG)");
  o->retrieve.add(app,
                  "retrieval-augmented generation: prepend the passages of this index (`tessera "
                  "index`) nearest to a chat's question, unless the request says otherwise; "
                  "answers have \"sources\"");
  group(app, "Limits and timeouts");
  app.add_option("--deadline,--timeout", o->deadline, "request timeout, s")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--grace", o->grace, "graceful-shutdown timeout, s")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--queue", limits.waiting_requests, "maximum queued requests (then 429)")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--queue-tokens", o->queue_tokens, "maximum queued prompt tokens (then 429)")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--connections", limits.connections, "maximum open connections")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--max-body", o->body_mib, "maximum request body, MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  group(app, "Logging and metrics");
  app.add_option("--log", o->log, "request log on stderr")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json", "none"}));
  app.add_option("--metrics-compat", s.metrics_compat,
                 "also export metrics under vLLM's or llama.cpp's names")
      ->check(CLI::IsMember({"vllm", "llamacpp"}));
  group(app, "Precision and performance");
  o->products.add_arithmetic(app);
  o->device.add(app);
  add_threads(app, o->threads);
  app.footer(
      "Fixed limits: request head 16 KiB and 100 fields, path 2 KiB, JSON depth 64. Timeouts: head "
      "10 s,\nbody 30 s, keep-alive 75 s, write 30 s.\n\nExamples:\n"
      "  tessera serve model.gguf\n"
      "  tessera serve folder --alias mine --adapter poet=runs/poet/last --port 9000\n"
      "  tessera serve chat.gguf all-MiniLM-L6-v2 --model-memory 4096\n"
      "  tessera serve large.gguf --draft small.gguf\n"
      "  tessera serve chat.gguf --retrieve notes.index --passages 3\n"
      "  tessera serve model.gguf --host 0.0.0.0 --api-key-file keys --allow-host my.example.org\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' "
      "-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'\n");
  return [o] { return serve_verb::serve(*o); };
}

}  // namespace tessera::cli
