#include "tessera/base/version.h"
#include "tessera/serve/models.h"

#include <algorithm>
#include <chrono>

#include <fmt/ranges.h>

#include "tessera/base/cpu.h"
#include "tessera/infer/loading/weights_fingerprint.h"
#include "tessera/model/placement.h"
#include "tessera/model/plan.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/serve/api_error.h"
#include "tessera/text/tokenizer/vocabularies.h"
#include "tessera/base/sha256.h"
#include "tessera/convert/checkpoint_place.h"

namespace tessera::serve {
namespace {

constexpr std::chrono::milliseconds kLook{1000};  // interval of checks for idle models
/// After waiting this long, a model blocks new requests to the models in its way.
constexpr std::chrono::seconds kPatience{2};

ApiError shutting_down() {
  return {503, "server_shutting_down", "the server ends", "", 10};
}

const nn::HeadConfig* head_of(const model::ModelSpec& spec) {
  return dynamic_cast<const nn::HeadConfig*>(spec.head.config.get());
}

/// True if the rendered conversation contains this word; templates silently drop what they do not
/// use.
bool shows(const text::ChatPrompt& prompts, const text::Chat& chat, const std::string& word) {
  try {
    return prompts.render(chat).text.find(word) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

const char* const kProbe = "tessera_probes_this";

bool shows_tools(const text::ChatPrompt& prompts, const text::TemplatePoll& poll) {
  const Json tool = {{"type", "function"},
                     {"function",
                      {{"name", kProbe},
                       {"description", "none"},
                       {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}};
  return shows(prompts,
               {.messages = Json::array({{{"role", "user"}, {"content", "x"}}}),
                .tools = Json::array({tool}),
                .poll = poll},
               kProbe);
}

bool shows_system(const text::ChatPrompt& prompts, const text::TemplatePoll& poll) {
  return shows(prompts,
               {.messages = Json::array({{{"role", "system"}, {"content", kProbe}},
                                         {{"role", "user"}, {"content", "x"}}}),
                .poll = poll},
               kProbe);
}

/// Everything that determines the output, except the request.
std::string fingerprint_of(const infer::LoadedModel& loaded,
                           const spec::KvOptions& kv,
                           kernels::Arithmetic arithmetic) {
  Sha256 hash;
  hash.update(model::resolve(loaded.model.spec()).dump());
  for (const auto& [decl, weight] : loaded.model.weights().all())
    hash.update(fmt::format("{} {:016x};", decl.name, infer::sampled_hash(*weight)));
  hash.update(fmt::format("{} {} {} {}", spec::name_of(kv.type), static_cast<int>(arithmetic),
                          name_of(cpu_info().allowed), kVersion));
  return "fp_" + hash.finish().substr(0, 12);
}

int64_t bytes_of(const convert::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto& tensor : checkpoint.tensors) bytes += static_cast<int64_t>(tensor.data.size());
  return bytes;
}

}  // namespace

std::vector<std::string> Capabilities::names() const {
  std::vector<std::string> out;
  const auto add = [&](bool can, const char* name) {
    if (can) out.emplace_back(name);
  };
  add(chat, "chat");
  add(completion, "completion");
  add(embedding, "embedding");
  add(rerank, "rerank");
  add(classify, "classify");
  add(fill_mask, "fill_mask");
  add(translate, "translate");
  return out;
}

namespace {

/// Arguments of calls that are no JSON object (a model has written them so), as objects of one
/// member; false where there are none.
bool wrap_raw_arguments(Json& messages) {
  bool any = false;
  for (Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      Json& arguments = call["function"]["arguments"];
      if (!arguments.is_string()) continue;
      arguments = Json{{"arguments", std::move(arguments)}};
      any = true;
    }
  }
  return any;
}

}  // namespace

text::MarkedText ServedModel::Chats::render(text::Chat chat, bool goes_on) const {
  if (tools_in_text)
    chat.messages =
        text::tools_in_prompt(chat.messages, std::exchange(chat.tools, nullptr), system);
  // most templates write arguments as they are; some walk over the members of an object
  text::Chat wrapped = chat;
  if (!wrap_raw_arguments(wrapped.messages)) return prompts.render(std::move(chat), goes_on);
  try {
    return prompts.render(std::move(chat), goes_on);
  } catch (const Error&) {
    return prompts.render(std::move(wrapped), goes_on);
  }
}

ServedModel::Chats ServedModel::chats_of(const std::string& source,
                                         const std::string& where,
                                         const text::TemplatePoll& poll) const {
  Chats out{.prompts = {tokenizer(), source, where, clock_}, .ends = ends};
  const text::ToolCallFormat* const named = text::tool_call_format_named(tool_format_);
  const bool shows = shows_tools(out.prompts, poll);
  if (shows) out.calls = named != nullptr ? named : text::tool_call_format_of(source);
  if (out.calls == nullptr && (tool_format_ == "auto" || (tool_format_ == "generic" && !shows))) {
    out.calls = text::tool_call_format_named("hermes");
    out.tools_in_text = true;
    out.system = shows_system(out.prompts, poll);
  }
  for (const int64_t id : out.prompts.ends(poll))
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) out.ends.push_back(id);
  return out;
}

ServedModel::ServedModel(const ModelEntry& named,
                         infer::LoadedModel given,
                         const ModelOptions& options)
    : entry(named), loaded(std::move(given)) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "serve", "{} has no tokenizer; expected a model with one", entry.path);
  const model::ModelSpec& spec = loaded.model.spec();
  const bool pair = spec.encoder != nullptr;
  if (options.kv) kv = options.kv(loaded.model);
  longest = infer::longest_sequence(spec, options.context);
  if (longest > 0) longest = std::max<int64_t>(1, longest - loaded.model.virtual_tokens());
  context_name =
      longest < spec.longest_sequence() ? "the server's --context" : "this model's context";
  bytes = loaded.model.weights().bytes();
  for (const spec::ParamDecl& decl : model::parameters(spec)) {
    int64_t n = 1;
    for (const int64_t size : decl.shape) n *= size;
    parameters += n;
  }
  ends = infer::eos_ids(loaded);
  if (loaded.generation.forced_end) ends.push_back(*loaded.generation.forced_end);
  mask = text::mask_of(tokenizer());
  const infer::DecodingDefaults makers = decoding(true);
  if (options.say && !makers.unsupported.empty())
    options.say(fmt::format("{}: {}: without effect: {}", entry.id, makers.source,
                            fmt::join(makers.unsupported, ", ")));

  // capabilities
  const bool generates =
      spec.causal() && loaded.model.has_head() && spec.no_generation_reason().empty();
  const bool reads_ids = infer::feature_source(spec) == nullptr;
  const bool answers = spec.mask && loaded.model.has_head();  // non-autoregressive
  can.completion = generates && reads_ids;
  if (can.completion && !pair) fim = text::fim_of(tokenizer());
  can.translate = (generates || answers) && pair && reads_ids;
  const std::string source =
      options.chat_template.empty() ? tokenizer().chat_template() : options.chat_template;
  if (!generates || pair)
    no_chat = "encoder-only or encoder-decoder model: no chat";
  else if (source.empty())
    no_chat =
        "this model has no chat template; start the server with --chat-template FILE, or use "
        "/v1/completions";
  if (options.say)
    for (const std::string& remark : loaded.source.remarks)
      options.say(fmt::format("{}: {}", entry.id, remark));
  tool_format_ = options.tool_format;
  clock_ = options.clock;
  if (no_chat.empty()) {
    try {
      conversation.emplace(chats_of(source, entry.id));
    } catch (const Error& error) {
      // a template of the command line is a user error
      if (!options.chat_template.empty()) throw;
      no_chat = fmt::format(
          "this model's chat template cannot be read: {}; start the server with --chat-template "
          "FILE, or use /v1/completions",
          error.what());
      if (options.say) options.say(fmt::format("{}: {}", entry.id, no_chat));
    }
  }
  can.chat = conversation.has_value();
  // the model may have its own template for tools
  if (can.chat && options.chat_template.empty() && tokenizer().tool_template() != source)
    tool_conversation.emplace(chats_of(tokenizer().tool_template(), entry.id));
  if (can.chat && chats_for(true).tools_in_text && options.say)
    options.say(fmt::format(
        "{}: the chat template shows no tools in a known form; requests with tools get the generic "
        "tool prompt, and calls are read as JSON between <tool_call> tags (--tool-format)",
        entry.id));
  const nn::HeadConfig* const head = head_of(spec);
  const std::filesystem::path path = convert::checkpoint_place(entry.path);
  const bool of_sentences = std::filesystem::is_directory(path)
                                ? std::filesystem::is_regular_file(path / "modules.json")
                                : convert::sentence_modules_of(path).stated;
  const bool adapted =
      std::any_of(entry.adapters.begin(), entry.adapters.end(), [](const std::string& adapter) {
        return std::filesystem::is_regular_file(convert::checkpoint_place(adapter) /
                                                "modules.json");
      });
  const auto* const classifier = dynamic_cast<const nn::ClassifierConfig*>(head);
  can.embedding = !pair && classifier == nullptr &&
                  (!spec.causal() || of_sentences || adapted || !options.pooling.empty());
  // a pair classifier with one output is a reranker
  can.rerank = can.embedding || (!pair && classifier != nullptr && classifier->n_labels == 1 &&
                                 classifier->of == nn::ClassifierOf::pooled);
  can.classify = classifier != nullptr;
  can.fill_mask =
      !pair && !spec.causal() && head != nullptr && head->of_vocabulary() && mask.has_value();
  if (can.embedding) {
    embedding = infer::embed_options_of(entry.path, entry.adapters);
    if (!options.pooling.empty()) embedding.poolings = {infer::pooling_named(options.pooling)};
  }

  if (generates && options.speculation.on()) {
    try {
      infer::Drafter(loaded.model, options.speculation, nullptr);
      speculation = options.speculation;
    } catch (const Error& error) {
      speculation_unavailable = error.what();
    }
  }

  // state memory of a sequence
  if (generates && spec.no_state_reason().empty()) {
    const model::Plan one = model::make_plan(spec, 1, pair ? 1 : -1, kv.type);
    row_per_token_ = one.state_bytes_per_token;
    row_fixed_ = one.state_bytes_fixed + row_per_token_ * kv.page;
    if (pair) row_per_source_ = model::make_plan(spec, 1, 2, kv.type).state_bytes - one.state_bytes;
    // MTP layers have KV caches of their own; early exit uses at most all layers
    if (const model::ModelSpec* who = speculation.draft            ? &speculation.draft->spec()
                                      : speculation.exit_layer > 0 ? &spec
                                                                   : nullptr) {
      const model::Plan own = model::make_plan(*who, 1, who->encoder ? 1 : -1, spec::KvType::f32);
      row_per_token_ += own.state_bytes_per_token;
      row_fixed_ += own.state_bytes_fixed + own.state_bytes_per_token * spec::kDefaultKvPage;
    }
  }
  if (options.cache_bytes > 0 && generates && spec.no_state_reason().empty())
    cache = std::make_unique<infer::PrefixCache>(
        loaded.model, infer::PrefixCacheOptions{.budget_bytes = options.cache_bytes});
  fingerprint = fingerprint_of(loaded, kv, options.arithmetic);
}

infer::DecodingDefaults ServedModel::decoding(bool config) const {
  return infer::decoding_defaults(
      config ? loaded.generation : convert::GenerationConfig(),
      spec().encoder ? infer::TextKind::continuation : infer::TextKind::conversation);
}

int64_t ServedModel::context() const {
  return spec().encoder ? infer::longest_sequence(*spec().encoder, 0) : longest;
}

int64_t ServedModel::state_bytes(int64_t tokens, int64_t source) const {
  return row_fixed_ + row_per_token_ * tokens + row_per_source_ * source;
}

ModelPool::ModelPool(std::vector<ModelEntry> entries,
                     ModelOptions options,
                     int64_t budget,
                     Metrics& metrics)
    : entries_(std::move(entries)),
      options_(std::move(options)),
      budget_(budget),
      metrics_(metrics) {
  require(!entries_.empty(), "serve", "no model");
  for (const ModelEntry& entry : entries_) {
    int64_t& bytes = bytes_[entry.id];
    if (options_.load) continue;
    bytes = bytes_of(convert::load_checkpoint(entry.path, options_.loading));
    if (budget_ > 0 && bytes > budget_)
      fail(ErrorKind::usage, "serve",
           "{} has {} MiB of weights, and --model-memory is {} MiB; expected more of it",
           entry.path, bytes >> 20, budget_ >> 20);
  }
  thread_ = std::thread([this] { run(); });
}

ModelPool::~ModelPool() {
  stop();
}

void ModelPool::stop() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

const ModelEntry& ModelPool::entry(const std::string& name) const {
  if (name.empty() || any_name) {
    for (const ModelEntry& entry : entries_)
      if (entry.id == name) return entry;
    return entries_.front();
  }
  std::vector<std::string> names;
  for (const ModelEntry& entry : entries_) {
    if (entry.id == name) return entry;
    names.push_back(entry.id);
  }
  const std::string nearest = spec::nearest_name(name, names);
  throw ApiError(
      404, "model_not_found",
      fmt::format("model \"{}\" not found; {}", name,
                  nearest.empty() ? names.size() == 1 ? "it is \"" + names[0] + "\""
                                                      : std::string("/v1/models lists them")
                                  : "did you mean \"" + nearest + "\"?"),
      "model");
}

ServedModelPtr ModelPool::find(const std::string& id) const {
  for (const ServedModelPtr& model : loaded_)
    if (model->entry.id == id) return model;
  return nullptr;
}

ServedModelPtr ModelPool::loaded(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return find(id);
}

/// True if a loaded model must be unloaded before further use, because requests for others would
/// starve while continuous requests keep it in memory.
bool ModelPool::must_wait(const std::string& id) const {
  if (making_room_for_.empty() || making_room_for_ == id) return false;
  const auto found = waiting_.find(making_room_for_);
  return found != waiting_.end() && !found->second.empty() &&
         std::chrono::steady_clock::now() - found->second.front().since > kPatience;
}

void ModelPool::with(const ModelEntry& entry, Wait wait) {
  ServedModelPtr model;
  {
    const std::lock_guard lock(mutex_);
    if (aborting_) throw shutting_down();
    model = find(entry.id);
    if (model && !must_wait(entry.id)) {
      loaded_.splice(loaded_.begin(), loaded_, std::find(loaded_.begin(), loaded_.end(), model));
      used_[entry.id] = std::chrono::steady_clock::now();
    } else {
      model.reset();
      std::vector<Wait>& waits = waiting_[entry.id];
      if (waits.empty()) asked_.push_back(entry.id);
      waits.push_back(std::move(wait));
    }
  }
  if (model)
    wait.use(model, nullptr);
  else
    changed_.notify_all();
}

/// The waiting requests of one model.
std::vector<ModelPool::Use> ModelPool::take_waits(const std::string& id) {
  std::vector<Use> uses;
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return uses;
  for (Wait& wait : found->second) uses.push_back(std::move(wait.use));
  waiting_.erase(found);
  return uses;
}

template <class Over>
void ModelPool::end_waits(const Over& over, const std::exception_ptr& error) {
  std::vector<Use> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, waits] : waiting_)
      for (auto at = waits.begin(); at != waits.end();) {
        if (!over(*at)) {
          ++at;
          continue;
        }
        ended.push_back(std::move(at->use));
        at = waits.erase(at);
      }
  }
  // no memory is freed for disconnected clients
  if (!ended.empty()) changed_.notify_all();
  for (Use& use : ended) use(nullptr, error);
}

void ModelPool::expire() {
  const auto now = std::chrono::steady_clock::now();
  end_waits(
      [&](const Wait& wait) {
        return now >= wait.deadline || (wait.disconnected && wait.disconnected());
      },
      std::make_exception_ptr(
          ApiError(504, "deadline_exceeded",
                   "request timeout while the model was loading or waiting for memory")));
}

void ModelPool::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborting_ = true;
  }
  end_waits([](const Wait&) { return true; }, std::make_exception_ptr(shutting_down()));
}

int64_t ModelPool::used() const {
  int64_t bytes = 0;
  for (const ServedModelPtr& model : loaded_) bytes += bytes_.at(model->entry.id);
  return bytes;
}

/// Waits for memory for a model and unloads the least recently used ones; false if no request waits
/// for it any more. Models are destroyed without the lock, because that takes time.
bool ModelPool::make_room(const std::string& id, Lock& lock) {
  const auto wanted = [&] {
    const auto found = waiting_.find(id);
    return !stopping_ && found != waiting_.end() && !found->second.empty();
  };
  making_room_for_ = id;
  while (budget_ > 0 && wanted() && used() + bytes_.at(id) > budget_) {
    // only this list holds it: idle
    const auto idle = std::find_if(loaded_.rbegin(), loaded_.rend(),
                                   [](const auto& model) { return model.use_count() == 1; });
    if (idle == loaded_.rend()) {
      changed_.wait_for(lock, std::chrono::milliseconds(50));
      continue;
    }
    ServedModelPtr disconnected = std::move(*idle);
    loaded_.erase(std::next(idle).base());
    gave_up();
    lock.unlock();
    disconnected.reset();
    lock.lock();
  }
  making_room_for_.clear();
  return wanted();
}

void ModelPool::gave_up() {
  metrics_.add("model_unloads_total");
  metrics_.set("models_loaded", static_cast<double>(loaded_.size()));
  metrics_.set("model_bytes", static_cast<double>(used()));
}

void ModelPool::unload(const ModelEntry& entry) {
  ServedModelPtr disconnected;  // outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(loaded_.begin(), loaded_.end(),
                                  [&](const auto& model) { return model->entry.id == entry.id; });
  if (found == loaded_.end()) return;
  if (found->use_count() > 1)
    throw ApiError(409, "model_in_use",
                   "model is in use; unload it when its requests have finished", "model");
  disconnected = std::move(*found);
  loaded_.erase(found);
  gave_up();
}

/// Unloads models that have been idle for keep_alive.
void ModelPool::give_up_idle(Lock& lock) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<ServedModelPtr> disconnected;
  for (auto at = loaded_.begin(); at != loaded_.end();) {
    auto& last = used_[(*at)->entry.id];
    if (at->use_count() > 1) last = now;
    if (now - last < options_.keep_alive) {
      ++at;
      continue;
    }
    disconnected.push_back(std::move(*at));
    at = loaded_.erase(at);
    gave_up();
  }
  lock.unlock();
  disconnected.clear();
  lock.lock();
}

ServedModelPtr ModelPool::load(const ModelEntry& entry) {
  infer::LoadedModel model = options_.load ? options_.load(entry)
                                           : infer::load_model(entry.path, options_.loading,
                                                               entry.adapters, options_.arithmetic);
  if (!options_.device.is_cpu()) model.model = model::to_device(model.model, options_.device);
  const auto served = std::make_shared<ServedModel>(entry, std::move(model), options_);
  const std::lock_guard lock(mutex_);
  loaded_.push_front(served);
  used_[entry.id] = std::chrono::steady_clock::now();
  metrics_.add("model_loads_total");
  metrics_.set("models_loaded", static_cast<double>(loaded_.size()));
  metrics_.set("model_bytes", static_cast<double>(used()));
  return served;
}

void ModelPool::run() {
  Lock lock(mutex_);
  for (;;) {
    const auto wanted = [&] { return stopping_ || !asked_.empty(); };
    if (options_.keep_alive.count() == 0)
      changed_.wait(lock, wanted);
    else
      while (!changed_.wait_for(lock, std::min(options_.keep_alive, kLook), wanted))
        give_up_idle(lock);
    if (stopping_) return;
    const std::string id = std::move(asked_.front());
    asked_.pop_front();
    // a model that was to be unloaded may still be loaded
    ServedModelPtr model = find(id);
    if (!model && !make_room(id, lock)) continue;
    std::exception_ptr error;
    lock.unlock();
    if (!model) try {
        model = load(entry(id));
      } catch (...) {
        error = std::current_exception();
      }
    lock.lock();
    std::vector<Use> uses = take_waits(id);
    lock.unlock();
    for (Use& use : uses) use(model, error);
    uses.clear();
    model.reset();
    lock.lock();
  }
}

}  // namespace tessera::serve
