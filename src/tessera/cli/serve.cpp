// Models over HTTP.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/resource.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/guess_flags.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/product_flags.h"
#include "tessera/cli/retrieve_flags.h"
#include "tessera/serve/service.h"

namespace tessera::cli {
namespace serve_verb {

struct ServeArgs {
  std::vector<std::string> models, aliases, adapters;
  serve::ServiceOptions service;
  GuessFlags guesses;
  KvFlags kv;
  ProductFlags products;
  RetrieveFlags retrieve;
  std::string families, template_file, generation_config = "model", log = "text";
  int64_t context = 0, cache_mib = 256, model_mib = 0, state_mib = 0;
  int64_t queue_tokens = int64_t{1} << 20, body_mib = 8;
  double deadline = 600, grace = 30, keep_alive = 0;
  int threads = 0;
};

std::atomic<bool> reload_keys{false};

/// MiB that the system could still give.
int64_t available_mib() {
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
  for (size_t i = 0; i < o.models.size(); ++i)
    add({.id = o.aliases.empty() ? name_of(o.models[i]) : o.aliases[i], .path = o.models[i]});
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
           "--adapter {}: which of {} models it stands beside; expected MODEL:NAME=FOLDER", text,
           models);
    }
    const std::string folder = text.substr(equals + 1), base_id = base->id, path = base->path;
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
  fmt::print(stderr, "tessera: {} connections at most, by the limit of open files (ulimit -n)\n",
             limits.connections);
}

int serve(ServeArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  serve::ServiceOptions& s = o.service;
  serve::Limits& limits = s.server.limits;
  limits.waiting_tokens = o.queue_tokens;
  limits.body_bytes = static_cast<size_t>(o.body_mib) << 20;
  limits.deadline = std::chrono::milliseconds(static_cast<int64_t>(o.deadline * 1000));
  limits.grace = std::chrono::milliseconds(static_cast<int64_t>(o.grace * 1000));
  settle_connections(limits);
  o.guesses.check();
  s.engine.limits = limits;
  s.entries = entries_of(o);
  const int64_t available = available_mib();
  s.model_bytes = (o.model_mib > 0 ? o.model_mib : available / 2) << 20;
  s.engine.state_bytes = (o.state_mib > 0 ? o.state_mib : available / 4) << 20;
  s.generation_config = o.generation_config == "model";
  s.models.families = o.families;
  s.models.arithmetic = o.products.arithmetic();
  s.models.speculation = o.guesses.load(o.families, o.products.arithmetic());
  if (const model::Model* draft = s.models.speculation.draft; draft != nullptr)
    s.model_bytes = std::max<int64_t>(1, s.model_bytes - draft->weights().bytes());
  s.models.context = o.context;
  s.models.cache_bytes = o.cache_mib << 20;
  s.models.keep_alive = std::chrono::milliseconds(static_cast<int64_t>(o.keep_alive * 1000));
  s.retrieve = o.retrieve.from;
  s.room = o.retrieve.room;
  if (!o.template_file.empty())
    s.models.chat_template = read_text_file(o.template_file, size_t{1} << 20);
  s.models.kv = [&o](const model::Model& model) {
    KvFlags own = o.kv;
    own.check(model, o.products);
    return own.options();
  };
  if (const char* key = std::getenv("TESSERA_API_KEY"); key != nullptr) s.access.key = key;
  const bool loopback =
      s.server.host == "localhost" || s.server.host == "::1" || s.server.host.starts_with("127.");
  if (!loopback && s.access.key.empty() && s.access.key_file.empty())
    fail(ErrorKind::usage, "serve",
         "{} can be reached from elsewhere, and there is no key; expected --api-key-file FILE (a "
         "key a line), or TESSERA_API_KEY",
         s.server.host);
  s.access.hosts.push_back(s.server.host);
  if (o.log == "json")
    s.log = [](const Json& line) {
      fmt::print(stderr, "{}\n", line.dump(-1, ' ', true, Json::error_handler_t::replace));
    };
  else if (o.log == "text")
    s.log = [](const Json& line) {
      fmt::print(stderr, "{} {} {} {:.3f} s{}\n", line["method"].get<std::string>(),
                 line["route"].get<std::string>(), line["status"].get<int>(),
                 line["seconds"].get<double>(),
                 line.contains("model")
                     ? fmt::format(", {}: {} + {} tokens, {}", line["model"].get<std::string>(),
                                   line["prompt_tokens"].get<int64_t>(),
                                   line["generated_tokens"].get<int64_t>(),
                                   line["finish"].get<std::string>())
                     : std::string());
    };
  serve::Service service(s);
  std::signal(SIGHUP, [](int) { reload_keys = true; });
  const std::string host =
      s.server.host.find(':') == std::string::npos ? s.server.host : "[" + s.server.host + "]";
  fmt::print("http://{}:{}\n", host, service.port());
  flush_output();
  std::vector<std::string> names;
  for (const auto& entry : s.entries) names.push_back(entry.id);
  // as of a line of the log: that nobody can write it is no reason to end
  std::fputs(fmt::format("tessera: serves {} at http://{}:{}/v1; Ctrl-C ends it when its answers "
                         "are complete, twice at once\n",
                         fmt::join(names, ", "), host, service.port())
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
  app.add_option("model", o->models,
                 "folders or GGUF files; the first one is loaded at once, the "
                 "others when they are asked for")
      ->required();
  app.add_option("--alias", o->aliases,
                 "the name that a model is asked for by; once for each model")
      ->allow_extra_args(false);
  app.add_option(
         "--adapter", o->adapters,
         "NAME=FOLDER: a model of that name with an adapter (PEFT's or a run's) beside the "
         "weights; MODEL:NAME=FOLDER of several models. One NAME twice: the products add up")
      ->allow_extra_args(false);
  app.add_option("--host", s.server.host, "the address to listen on")->capture_default_str();
  app.add_option("--port", s.server.port, "0 = any that is free; it is printed")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--api-key-file", s.access.key_file,
                 "clients need one of these keys, a key a line; only you may read the file. Also "
                 "TESSERA_API_KEY, one key. SIGHUP reads it again");
  app.add_option("--allow-host", s.access.hosts, "a further name that the server is called by")
      ->allow_extra_args(false);
  app.add_option("--cors-origin", s.access.cors_origins,
                 "pages of this origin (https://example.org) may ask from a browser")
      ->allow_extra_args(false);
  app.add_option("--model-memory", o->model_mib,
                 "MiB of weights in memory at most: a model that nobody uses goes when another is "
                 "asked for; 0 = half of what is free at the start")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--state-memory", o->state_mib,
                 "MiB that the states of running texts may come to; others wait. 0 = a quarter of "
                 "what is free at the start")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--prefix-cache", o->cache_mib,
                 "MiB for each model: what prompts begin with alike is computed once; 0 = none")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app.add_option("--parallel", s.engine.parallel, "texts that are made at a time; others wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_flag("--priorities", s.engine.priorities,
               "requests may say a priority, -10 to 10: the lower goes first, and others let go of "
               "their places for it");
  app.add_option("--keep-alive", o->keep_alive,
                 "seconds until a model that nobody uses is given up; 0 = when its memory is "
                 "needed")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--step-ms", s.engine.step_ms,
                 "beside texts that go on, new prompts take about so long a step; else four times "
                 "as long, 256 to 1,024 tokens")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--context", o->context, "longest text in tokens; 0 = what a model is made for")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--max-tokens", s.max_tokens, "new tokens of a chat that does not say how many")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--chat-template", o->template_file,
                 "a file with the chat template, instead of the models' own");
  std::vector<std::string> tool_formats = {"auto", "generic"};
  for (const text::ReplyFormat& format : text::reply_formats()) tool_formats.push_back(format.name);
  app.add_option("--tool-format", s.models.tool_format,
                 "how models call functions. auto: as their chat template shows; generic: those "
                 "whose template knows of none are told in the conversation; else in this form")
      ->capture_default_str()
      ->check(CLI::IsMember(tool_formats));
  app.add_flag("--request-templates", s.request_templates,
               "chats may bring a \"chat_template\" of their own");
  app.add_option("--generation-config", o->generation_config,
                 "model: how its makers sample it holds where a request does not say; none: it "
                 "does not")
      ->capture_default_str()
      ->check(CLI::IsMember({"model", "none"}));
  app.add_option("--pooling", s.models.pooling,
                 "mean, cls, max or last: decoders answer /v1/embeddings so; encoders as they say")
      ->check(CLI::IsMember({"mean", "cls", "max", "last"}));
  app.add_flag("--any-model", s.any_model,
               "requests for a model of another name get the first one");
  app.add_flag("--lenient", s.lenient,
               "parameters that are not known are named in X-Tessera-Ignored, not refused");
  app.add_option("--deadline", o->deadline, "seconds until a request is given up")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--grace", o->grace, "seconds for running answers when the server is to end")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--queue", limits.waiting_requests, "requests that wait at most; others get 429")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--queue-tokens", o->queue_tokens, "tokens of their prompts, at most")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--connections", limits.connections, "open at a time")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--max-body", o->body_mib, "MiB of a request")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--metrics-compat", s.metrics_compat,
                 "vllm or llamacpp: /metrics has their names beside its own")
      ->check(CLI::IsMember({"vllm", "llamacpp"}));
  app.add_option("--log", o->log, "a line for each request on stderr: text, json or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json", "none"}));
  o->retrieve.add(app,
                  "chats have the passages of this index (`tessera index`) that are nearest to "
                  "their question before it, unless a request says otherwise; answers name them as "
                  "\"sources\"");
  o->guesses.add(app);
  o->kv.add(app);
  o->products.add_arithmetic(app);
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_option("--families", o->families, "a folder of further family files");
  app.footer(
      "Further limits: 16 KiB and 100 fields of a request's head, 2 KiB of its path, 64 levels of "
      "JSON;\n10 s for a head, 30 s for a body, 75 s between requests, 30 s without a byte of an "
      "answer taken.\n\nExamples:\n"
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
