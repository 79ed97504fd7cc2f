#include "tessera/serve/models.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "tessera/base/cpu.h"
#include "tessera/infer/base_print.h"
#include "tessera/model/plan.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/serve/api_error.h"
#include "tessera/base/sha256.h"

namespace tessera::serve {
namespace {

constexpr std::chrono::milliseconds kLook{1000};  // for models that nobody uses

const nn::HeadConfig* head_of(const model::ModelSpec& spec) {
  return dynamic_cast<const nn::HeadConfig*>(spec.head.config.get());
}

/// Whether a conversation shows this word; templates leave out without a word what they do not
/// know.
bool shows(const text::ChatPrompt& prompts, const text::Chat& chat, const std::string& word) {
  try {
    return prompts.render(chat).text.find(word) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

const char* const kProbe = "tessera_probes_this";

bool shows_tools(const text::ChatPrompt& prompts) {
  const Json tool = {{"type", "function"},
                     {"function",
                      {{"name", kProbe},
                       {"description", "none"},
                       {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}};
  return shows(prompts,
               {.messages = Json::array({{{"role", "user"}, {"content", "x"}}}),
                .tools = Json::array({tool})},
               kProbe);
}

bool shows_system(const text::ChatPrompt& prompts) {
  return shows(prompts,
               {.messages = Json::array({{{"role", "system"}, {"content", kProbe}},
                                         {{"role", "user"}, {"content", "x"}}})},
               kProbe);
}

/// What the vocabulary calls a mask.
std::optional<int64_t> mask_of(const text::Tokenizer& tokenizer) {
  for (const char* name : {"[MASK]", "<mask>"})
    if (const auto id = tokenizer.id(name); id && tokenizer.is_special(*id)) return *id;
  return std::nullopt;
}

/// The names that vocabularies have for the parts of a text whose middle is missing.
std::optional<ServedModel::Middle> fim_of(const text::Tokenizer& tokenizer) {
  const auto special = [&](const char* name) -> std::optional<int64_t> {
    const auto id = tokenizer.id(name);
    return id && tokenizer.is_special(*id) ? std::optional<int64_t>(*id) : std::nullopt;
  };
  for (const auto& [prefix, suffix, middle] :
       {std::tuple{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
        {"▁<PRE>", "▁<SUF>", "▁<MID>"},
        {"<PRE>", "<SUF>", "<MID>"},
        {"[PREFIX]", "[SUFFIX]", "[MIDDLE]"}}) {
    const auto a = special(prefix), b = special(suffix), c = special(middle);
    if (!a || !b || !c) continue;
    auto file = special("<|file_sep|>");
    if (!file) file = special("<file_sep>");
    return ServedModel::Middle{*a, *b, *c, file};
  }
  return std::nullopt;
}

/// Everything that a token of an answer follows from, the request apart.
std::string fingerprint_of(const infer::LoadedModel& loaded,
                           const spec::KvOptions& kv,
                           kernels::Arithmetic arithmetic) {
  Sha256 hash;
  hash.update(model::resolve(loaded.model.spec()).dump());
  for (const auto& [decl, weight] : loaded.model.weights().all())
    hash.update(fmt::format("{} {:016x};", decl.name, infer::sampled_hash(*weight)));
  hash.update(fmt::format("{} {} {} {}", spec::name_of(kv.type), static_cast<int>(arithmetic),
                          name_of(cpu_info().allowed), "0.1.0"));
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

text::MarkedText ServedModel::Chats::render(text::Chat chat, bool goes_on) const {
  if (told)
    chat.messages = text::tell_of_tools(chat.messages, std::exchange(chat.tools, nullptr), system);
  return prompts.render(std::move(chat), goes_on);
}

ServedModel::Chats ServedModel::chats_of(const std::string& source,
                                         const std::string& where) const {
  Chats out{.prompts = {tokenizer(), source, where}, .ends = ends};
  const text::ReplyFormat* const named = text::reply_format_named(tool_format_);
  if (shows_tools(out.prompts)) {
    out.calls = named != nullptr ? named : text::reply_format_of(source);
  } else if (tool_format_ == "generic") {
    out.calls = text::reply_format_named("hermes");
    out.told = true;
    out.system = shows_system(out.prompts);
  }
  for (const int64_t id : out.prompts.ends())
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
  bytes = loaded.model.weights().bytes();
  for (const spec::ParamDecl& decl : model::parameters(spec)) {
    int64_t n = 1;
    for (const int64_t size : decl.shape) n *= size;
    parameters += n;
  }
  ends = infer::end_ids(loaded);
  if (loaded.generation.forced_end) ends.push_back(*loaded.generation.forced_end);
  for (int32_t id = 0; id < tokenizer().vocab_size(); ++id)
    if (tokenizer().is_special(id)) specials.emplace_back(tokenizer().token(id));
  mask = mask_of(tokenizer());

  // what it can do
  const bool generates =
      spec.causal() && loaded.model.has_head() && spec.no_generation_reason().empty();
  const bool reads_ids = infer::feature_source(spec) == nullptr;
  const bool answers = spec.mask && loaded.model.has_head();  // all of a text at once
  can.completion = generates && reads_ids;
  if (can.completion && !pair) fim = fim_of(tokenizer());
  can.translate = (generates || answers) && pair && reads_ids;
  const std::string source =
      options.chat_template.empty() ? tokenizer().chat_template() : options.chat_template;
  if (!generates || pair)
    no_chat = "this model does not go on with a text";
  else if (source.empty())
    no_chat =
        "this model has no chat template; start the server with --chat-template FILE, or use "
        "/v1/completions";
  tool_format_ = options.tool_format;
  if (no_chat.empty()) conversation.emplace(chats_of(source, entry.id));
  can.chat = conversation.has_value();
  const nn::HeadConfig* const head = head_of(spec);
  const std::filesystem::path path = entry.path;
  const bool of_sentences = std::filesystem::is_directory(path)
                                ? std::filesystem::is_regular_file(path / "modules.json")
                                : convert::sentence_modules_of(path).said;
  const auto* const classifier = dynamic_cast<const nn::ClassifierConfig*>(head);
  can.embedding = !pair && classifier == nullptr &&
                  (!spec.causal() || of_sentences || !options.pooling.empty());
  // one number of a pair says how well they fit
  can.rerank = can.embedding || (!pair && classifier != nullptr && classifier->n_labels == 1 &&
                                 classifier->of == nn::ClassifierOf::pooled);
  can.classify = classifier != nullptr;
  can.fill_mask =
      !pair && !spec.causal() && head != nullptr && head->of_vocabulary() && mask.has_value();
  if (can.embedding) {
    embedding = infer::embed_options_of(entry.path);
    if (!options.pooling.empty()) embedding.pooling = infer::pooling_named(options.pooling);
  }

  if (generates && options.speculation.on()) {
    try {
      infer::Guesser(loaded.model, options.speculation, nullptr);
      guesses = options.speculation;
    } catch (const Error& error) {
      no_guesses = error.what();
    }
  }

  // what a row costs
  if (generates && spec.no_state_reason().empty()) {
    const model::Plan one = model::make_plan(spec, 1, pair ? 1 : -1, kv.type);
    row_per_token_ = one.state_bytes_per_token;
    row_fixed_ = one.state_bytes_fixed + row_per_token_ * kv.page;
    if (pair) row_per_source_ = model::make_plan(spec, 1, 2, kv.type).state_bytes - one.state_bytes;
    // who guesses by layers of its own keeps as much of a text in them; first layers, all of them
    // at most
    if (const model::ModelSpec* who = guesses.draft            ? &guesses.draft->spec()
                                      : guesses.exit_layer > 0 ? &spec
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
    bytes = bytes_of(convert::load_checkpoint(entry.path, {options_.families}));
    if (budget_ > 0 && bytes > budget_)
      fail(ErrorKind::usage, "serve",
           "{} has {} MiB of weights, and --model-memory is {} MiB; expected more of it",
           entry.path, bytes >> 20, budget_ >> 20);
  }
  thread_ = std::thread([this] { run(); });
}

ModelPool::~ModelPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
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
      fmt::format("there is no such model here; {}",
                  nearest.empty() ? names.size() == 1 ? "it is \"" + names[0] + "\""
                                                      : std::string("/v1/models lists them")
                                  : "did you mean \"" + nearest + "\"?"),
      "model");
}

ServedModelPtr ModelPool::loaded(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  for (const ServedModelPtr& model : loaded_)
    if (model->entry.id == id) return model;
  return nullptr;
}

void ModelPool::with(const ModelEntry& entry, Use use) {
  ServedModelPtr model;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(loaded_.begin(), loaded_.end(),
                                    [&](const auto& m) { return m->entry.id == entry.id; });
    if (found != loaded_.end()) {
      loaded_.splice(loaded_.begin(), loaded_, found);
      used_[entry.id] = std::chrono::steady_clock::now();
      model = loaded_.front();
    } else {
      std::vector<Use>& users = waiting_[entry.id];
      if (users.empty()) asked_.push_back(entry.id);
      users.push_back(std::move(use));
    }
  }
  if (model)
    use(model, nullptr);
  else
    changed_.notify_all();
}

int64_t ModelPool::used() const {
  int64_t bytes = 0;
  for (const ServedModelPtr& model : loaded_) bytes += bytes_.at(model->entry.id);
  return bytes;
}

/// Waits until there is room for so many bytes, and gives up what was used longest ago.
void ModelPool::make_room(int64_t bytes, std::unique_lock<std::mutex>& lock) {
  while (budget_ > 0 && !stopping_ && used() + bytes > budget_) {
    // nobody but this list holds it
    const auto idle = std::find_if(loaded_.rbegin(), loaded_.rend(),
                                   [](const auto& model) { return model.use_count() == 1; });
    if (idle == loaded_.rend()) {
      changed_.wait_for(lock, std::chrono::milliseconds(50));
      continue;
    }
    const ServedModelPtr gone = *idle;
    loaded_.erase(std::next(idle).base());
    gave_up();
  }
}

void ModelPool::gave_up() {
  metrics_.add("model_unloads_total");
  metrics_.set("models_loaded", static_cast<double>(loaded_.size()));
  metrics_.set("model_bytes", static_cast<double>(used()));
}

void ModelPool::unload(const ModelEntry& entry) {
  ServedModelPtr gone;  // outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(loaded_.begin(), loaded_.end(),
                                  [&](const auto& model) { return model->entry.id == entry.id; });
  if (found == loaded_.end()) return;
  if (found->use_count() > 1)
    throw ApiError(409, "model_in_use", "requests use this model; it can go when they have ended",
                   "model");
  gone = std::move(*found);
  loaded_.erase(found);
  gave_up();
}

/// Those that nobody has used for the time that a model is kept.
void ModelPool::give_up_idle() {
  const auto now = std::chrono::steady_clock::now();
  for (auto at = loaded_.begin(); at != loaded_.end();) {
    auto& last = used_[(*at)->entry.id];
    if (at->use_count() > 1) last = now;
    if (now - last < options_.keep_alive) {
      ++at;
      continue;
    }
    at = loaded_.erase(at);
    gave_up();
  }
}

ServedModelPtr ModelPool::load(const ModelEntry& entry) {
  infer::LoadedModel model = options_.load ? options_.load(entry)
                                           : infer::load_model(entry.path, {options_.families},
                                                               entry.adapters, options_.arithmetic);
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
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto wanted = [&] { return stopping_ || !asked_.empty(); };
    if (options_.keep_alive.count() == 0)
      changed_.wait(lock, wanted);
    else
      while (!changed_.wait_for(lock, std::min(options_.keep_alive, kLook), wanted)) give_up_idle();
    if (stopping_) return;
    const std::string id = std::move(asked_.front());
    asked_.pop_front();
    make_room(bytes_.at(id), lock);
    if (stopping_) return;
    lock.unlock();
    ServedModelPtr model;
    std::exception_ptr error;
    try {
      model = load(entry(id));
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    std::vector<Use> users = std::move(waiting_.extract(id).mapped());
    lock.unlock();
    for (Use& use : users) use(model, error);
    users.clear();
    model.reset();
    lock.lock();
  }
}

}  // namespace tessera::serve
