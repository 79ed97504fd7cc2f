// The served models: loaded on first use, within a memory budget, and unloaded when idle or when
// others need the memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/serve/constraint_cache.h"
#include "tessera/infer/loading/decoding_defaults.h"
#include "tessera/infer/encoders/embed.h"
#include "tessera/infer/engine/engine.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/serve/metrics.h"
#include "tessera/text/chat/reply.h"
#include "tessera/text/chat/chat_prompt.h"
#include "tessera/text/chat/tools_in_prompt.h"
#include "tessera/text/tokenizer/vocabularies.h"

namespace tessera::serve {

/// A model that requests can name, possibly with adapters.
struct ModelEntry {
  std::string id, path;
  std::vector<std::string> adapters = {};
  std::string of = {};  // the base model of the adapters; "" = none
};

struct ModelOptions {
  convert::LoadOptions loading = {};  // how their files are read
  at::Device device = at::kCPU;       // where they compute
  std::string chat_template;          // replaces the models' chat templates
  kernels::Arithmetic arithmetic = kernels::Arithmetic::float32;
  /// KV cache options of a model.
  std::function<spec::KvOptions(const model::Model&)> kv;
  /// Speculative decoding, for models that support it; the first one must. The draft model must
  /// outlive them.
  infer::Speculation speculation;
  int64_t context = 0;                       // max. tokens of a sequence; 0 = the model's
  int64_t cache_bytes = int64_t{256} << 20;  // prefix cache of each model; 0 = none
  std::chrono::milliseconds keep_alive{0};   // unload a model idle for this long; 0 = never
  /// Tool calling. "auto" = as the chat template defines; if it defines none or an unknown format,
  /// tools are described in the conversation (text/chat/tools_in_prompt.h). "generic" = the latter
  /// only for templates that define none. Otherwise a name of tool_call_formats().
  std::string tool_format = "auto";
  /// The clock of strftime_now().
  text::TemplateClock clock = text::local_time;
  /// Receives a line about a loaded model, such as a feature of its files that is not supported;
  /// may be empty.
  std::function<void(const std::string&)> say;
  std::string pooling;  // pooling of decoders for embeddings; "" = no embeddings
  /// Replaces loading from disk.
  std::function<infer::LoadedModel(const ModelEntry&)> load;
};

struct Capabilities {
  bool chat = false, completion = false, embedding = false, rerank = false, classify = false,
       fill_mask = false, translate = false;
  std::vector<std::string> names() const;
};

/// A loaded model and everything that responses need. Immutable, except for the members of the
/// scheduler's thread.
struct ServedModel {
  ServedModel(const ModelEntry& entry, infer::LoadedModel loaded, const ModelOptions& options);

  const model::ModelSpec& spec() const { return loaded.model.spec(); }
  const text::Tokenizer& tokenizer() const { return *loaded.tokenizer; }
  /// Max. tokens of a sequence, of the source for an encoder-decoder; 0 = no limit.
  int64_t context() const;
  /// Default decoding options; `config`: with the model's own settings.
  infer::DecodingDefaults decoding(bool config) const;
  /// Upper bound for the bytes of the state of a sequence with that many tokens.
  int64_t state_bytes(int64_t tokens, int64_t source) const;

  ModelEntry entry;
  infer::LoadedModel loaded;
  Capabilities can;
  /// A chat template, its tool-call format and its stop tokens. Throws Error for an invalid
  /// template. `poll`: called during the renderings that detect its features.
  struct Chats {
    text::ChatPrompt prompts;
    const text::ToolCallFormat* calls = nullptr;  // of tool calls, if the template defines any
    /// The template defines no tools: they are described in the conversation, in its system message
    /// if there is one.
    bool tools_in_text = false, system = true;
    std::vector<int64_t> ends;
    /// ChatPrompt::render(). Arguments of calls may be a string, as a model wrote it, if they are
    /// no JSON object.
    text::MarkedText render(text::Chat chat, bool goes_on = false) const;
  };
  Chats chats_of(const std::string& source,
                 const std::string& where,
                 const text::TemplatePoll& poll = {}) const;
  /// The model's template, or its template for tools; requires can.chat.
  const Chats& chats_for(bool tools) const {
    return tools && tool_conversation ? *tool_conversation : *conversation;
  }

  std::optional<Chats> conversation, tool_conversation;
  std::string no_chat;                 // why there is none
  std::vector<int64_t> ends;           // stop tokens, those of conversations included
  std::optional<int64_t> mask;         // the mask token of fill-mask
  std::optional<text::MiddleIds> fim;  // if the model supports fill in the middle
  infer::EmbedOptions embedding;
  spec::KvOptions kv;
  infer::Speculation speculation;       // off if the model does not support it
  std::string speculation_unavailable;  // why, if other models have it
  int64_t longest = 0, bytes = 0, parameters = 0;
  std::string context_name;  // source of `longest`, for messages
  std::string fingerprint;
  mutable ConstraintCache constraints;

  // used by the scheduler's thread only
  std::unique_ptr<infer::PrefixCache> cache;
  std::unique_ptr<infer::Engine> engine;

 private:
  std::string tool_format_;
  text::TemplateClock clock_;
  int64_t row_fixed_ = 0, row_per_token_ = 0, row_per_source_ = 0;
};
using ServedModelPtr = std::shared_ptr<ServedModel>;

/// Loads and unloads the served models; shares ownership of a loaded model with the requests that
/// use it. Thread-safe; one thread of its own loads models. Weights stay within the budget: the
/// least recently used idle model is unloaded first. Errors of loading go to the requests that
/// wait.
class ModelPool {
 public:
  /// `budget`: bytes of weights of all loaded models; 0 = no limit. Opens every model's files to
  /// check them, and throws their errors; Error(usage) for a model larger than the budget.
  ModelPool(std::vector<ModelEntry> entries,
            ModelOptions options,
            int64_t budget,
            Metrics& metrics);
  ~ModelPool();

  const std::vector<ModelEntry>& entries() const { return entries_; }
  /// Throws ApiError 404 `model_not_found`. "" is the first one.
  const ModelEntry& entry(const std::string& name) const;
  /// Serves requests for unknown names with the first model.
  bool any_name = false;

  using Use = std::function<void(ServedModelPtr model, std::exception_ptr error)>;
  /// A request that waits for a model, and its deadline.
  struct Wait {
    Use use;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    std::function<bool()> disconnected = {};  // true once the client has left; empty = never
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  };
  /// Calls `use` at once if the model is loaded, otherwise later on a thread of the pool; with an
  /// ApiError 504 on the thread of expire() if the deadline comes first.
  void with(const ModelEntry& entry, Wait wait);
  void with(const ModelEntry& entry, Use use) { with(entry, Wait{std::move(use)}); }
  /// Ends waits past their deadline or of disconnected clients. Call it regularly.
  void expire();
  /// All waits, present and future, end with ApiError 503.
  void abort();
  /// abort(), then joins the thread, after the model that it is loading.
  void stop();
  /// Unloads a model. Throws ApiError 409 while it is in use.
  void unload(const ModelEntry& entry);
  /// The model if it is loaded, else nullptr.
  ServedModelPtr loaded(const std::string& id) const;
  /// Loads a model and waits for it.
  ServedModelPtr load(const ModelEntry& entry);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  void gave_up();
  void give_up_idle(Lock& lock);
  bool make_room(const std::string& id, Lock& lock);
  bool must_wait(const std::string& id) const;
  int64_t used() const;
  ServedModelPtr find(const std::string& id) const;
  std::vector<Use> take_waits(const std::string& id);
  template <class Over>
  void end_waits(const Over& over, const std::exception_ptr& error);

  std::vector<ModelEntry> entries_;
  ModelOptions options_;
  const int64_t budget_;
  Metrics& metrics_;
  std::map<std::string, int64_t> bytes_;  // bytes of each model's weights
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<ServedModelPtr> loaded_;                                   // most recently used first
  std::map<std::string, std::chrono::steady_clock::time_point> used_;  // time of the last use
  std::map<std::string, std::vector<Wait>> waiting_;
  std::list<std::string> asked_;  // models that requests wait for
  std::string making_room_for_;   // one of them, if others must be unloaded first; "" = none
  bool stopping_ = false, aborting_ = false;
  std::thread thread_;
};

}  // namespace tessera::serve
