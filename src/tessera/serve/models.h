// The models that are served: loaded when they are first asked for, within a budget of memory, and
// given up for others when nobody uses them.
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

/// What can be asked for by a name: a model, or one with adapters beside its weights.
struct ModelEntry {
  std::string id, path;
  std::vector<std::string> adapters = {};
  std::string of = {};  // the model that the adapters stand beside; "" = none
};

struct ModelOptions {
  convert::LoadOptions loading = {};  // how their files are read
  std::string chat_template;          // the source of a template in place of the models'
  kernels::Arithmetic arithmetic = kernels::Arithmetic::float32;
  /// How a model's keys and values are kept.
  std::function<spec::KvOptions(const model::Model&)> kv;
  /// How models guess ahead, those that can: the first one must. A draft outlives them.
  infer::Speculation speculation;
  int64_t context = 0;                       // longest sequence; 0 = what a model is made for
  int64_t cache_bytes = int64_t{256} << 20;  // of each model's prefix cache; 0 = none
  std::chrono::milliseconds keep_alive{0};   // a model unused for so long is given up; 0 = never
  /// How models call functions: "auto" = as the template shows, and where it shows none or a form
  /// that is not known, they are described in the conversation (text/chat/tools_in_prompt.h);
  /// "generic" = likewise, but for templates that show none alone; else a name of tool_call_formats().
  std::string tool_format = "auto";
  /// Told the time by strftime_now().
  text::TemplateClock clock = text::local_time;
  /// Takes a line about a model that is loaded, such as what it cannot do though its files say it
  /// can; may be empty.
  std::function<void(const std::string&)> say;
  std::string pooling;  // decoders answer embeddings by it; "" = not
  /// In place of loading from disk.
  std::function<infer::LoadedModel(const ModelEntry&)> load;
};

struct Capabilities {
  bool chat = false, completion = false, embedding = false, rerank = false, classify = false,
       fill_mask = false, translate = false;
  std::vector<std::string> names() const;
};

/// A loaded model with all that answers need. Immutable, but for what belongs to the engine's
/// thread.
struct ServedModel {
  ServedModel(const ModelEntry& entry, infer::LoadedModel loaded, const ModelOptions& options);

  const model::ModelSpec& spec() const { return loaded.model.spec(); }
  const text::Tokenizer& tokenizer() const { return *loaded.tokenizer; }
  /// The longest sequence, 0 = any; of the source, beside an encoder.
  int64_t context() const;
  /// How texts are decoded where a request does not say; `config`: as the model's makers do.
  infer::DecodingDefaults decoding(bool config) const;
  /// Bytes of the state of a row of so many tokens, at most.
  int64_t state_bytes(int64_t tokens, int64_t source) const;

  ModelEntry entry;
  infer::LoadedModel loaded;
  Capabilities can;
  /// How conversations are written by a template, and what ends an answer. Throws Error for one
  /// that is none. `poll`: of the runs that tell what it shows.
  struct Chats {
    text::ChatPrompt prompts;
    const text::ToolCallFormat* calls = nullptr;  // of functions, where the template shows any
    /// The template shows none: the conversation tells of them, in its system message where there
    /// is one.
    bool told = false, system = true;
    std::vector<int64_t> ends;
    /// ChatPrompt::render(). Arguments of calls may be a string, as a model wrote it, where they
    /// are no JSON object.
    text::MarkedText render(text::Chat chat, bool goes_on = false) const;
  };
  Chats chats_of(const std::string& source,
                 const std::string& where,
                 const text::TemplatePoll& poll = {}) const;
  /// Of the model's own template, or of its template for tools; can.chat.
  const Chats& chats_for(bool tools) const {
    return tools && tool_conversation ? *tool_conversation : *conversation;
  }

  std::optional<Chats> conversation, tool_conversation;
  std::string no_chat;                 // why not, where there is none
  std::vector<int64_t> ends;           // of texts; those of conversations too
  std::optional<int64_t> mask;         // what fill-mask looks for
  std::optional<text::MiddleIds> fim;  // where the model fills in the middle of a text
  infer::EmbedOptions embedding;
  spec::KvOptions kv;
  infer::Speculation speculation;       // off where it cannot do so
  std::string speculation_unavailable;  // why, where others do
  int64_t longest = 0, bytes = 0, parameters = 0;
  std::string context_name;  // of `longest`, for messages
  std::string fingerprint;
  mutable ConstraintCache constraints;

  // of the engine's thread
  std::unique_ptr<infer::PrefixCache> cache;
  std::unique_ptr<infer::Engine> engine;

 private:
  std::string tool_format_;
  text::TemplateClock clock_;
  int64_t row_fixed_ = 0, row_per_token_ = 0, row_per_source_ = 0;
};
using ServedModelPtr = std::shared_ptr<ServedModel>;

class ModelPool {
 public:
  /// `budget`: bytes of weights of all loaded models; 0 = any. Opens every model's files to see
  /// that they are there, and throws what they throw; Error(usage) for one beyond the budget.
  ModelPool(std::vector<ModelEntry> entries,
            ModelOptions options,
            int64_t budget,
            Metrics& metrics);
  ~ModelPool();

  const std::vector<ModelEntry>& entries() const { return entries_; }
  /// Throws ApiError 404 `model_not_found`. "" is the only one, or the first.
  const ModelEntry& entry(const std::string& name) const;
  /// Answers a request for any name with the first one.
  bool any_name = false;

  using Use = std::function<void(ServedModelPtr model, std::exception_ptr error)>;
  /// Who waits for a model, and until when.
  struct Wait {
    Use use;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    std::function<bool()> disconnected =
        {};  // whether nobody waits any more; empty = somebody does
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  };
  /// Calls `use` at once where the model is loaded, else later on a thread of the pool; with an
  /// ApiError 504 on that of expire() where the deadline comes first.
  void with(const ModelEntry& entry, Wait wait);
  void with(const ModelEntry& entry, Use use) { with(entry, Wait{std::move(use)}); }
  /// Those whose time is over, and those who have left, wait no longer. To be called now and then.
  void expire();
  /// Whoever waits gets an ApiError 503, now and from now on.
  void abort();
  /// abort(), and the end of the thread; what it loads is loaded first.
  void stop();
  /// Gives its memory up. Throws ApiError 409 while somebody uses it.
  void unload(const ModelEntry& entry);
  /// Where it is loaded.
  ServedModelPtr loaded(const std::string& id) const;
  /// Loads one now.
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
  std::map<std::string, int64_t> bytes_;  // of each model's weights
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<ServedModelPtr> loaded_;                                   // the last used first
  std::map<std::string, std::chrono::steady_clock::time_point> used_;  // when last
  std::map<std::string, std::vector<Wait>> waiting_;
  std::list<std::string> asked_;  // models that somebody waits for
  std::string making_room_for_;   // one of them, while others are in its way; "" = none
  bool stopping_ = false, aborting_ = false;
  std::thread thread_;
};

}  // namespace tessera::serve
