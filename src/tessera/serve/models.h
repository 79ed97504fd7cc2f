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

#include "tessera/serve/constraints.h"
#include "tessera/infer/embed.h"
#include "tessera/infer/engine.h"
#include "tessera/infer/load_model.h"
#include "tessera/serve/metrics.h"
#include "tessera/text/reply.h"
#include "tessera/text/chat_prompt.h"
#include "tessera/text/told_tools.h"

namespace tessera::serve {

/// What can be asked for by a name: a model, or one with adapters beside its weights.
struct ModelEntry {
  std::string id, path;
  std::vector<std::string> adapters = {};
  std::string of = {};  // the model that the adapters stand beside; "" = none
};

struct ModelOptions {
  std::string families,
      chat_template;  // a folder; the source of a template in place of the models'
  kernels::Arithmetic arithmetic = kernels::Arithmetic::exact;
  /// How a model's keys and values are kept.
  std::function<spec::KvOptions(const model::Model&)> kv;
  /// How models guess ahead, those that can: the first one must. A draft outlives them.
  infer::Speculation speculation;
  int64_t context = 0;                       // longest sequence; 0 = what a model is made for
  int64_t cache_bytes = int64_t{256} << 20;  // of each model's prefix cache; 0 = none
  std::chrono::milliseconds keep_alive{0};   // a model unused for so long is given up; 0 = never
  /// How models call functions: "auto" = as the template shows; "generic" = so, and where it shows
  /// none they are told in the conversation (text/told_tools.h); else a name of reply_formats().
  std::string tool_format = "auto";
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
  /// Bytes of the state of a row of so many tokens, at most.
  int64_t state_bytes(int64_t tokens, int64_t source) const;

  ModelEntry entry;
  infer::LoadedModel loaded;
  Capabilities can;
  /// How conversations are written by a template, and what ends an answer. Throws Error for one
  /// that is none.
  struct Chats {
    text::ChatPrompt prompts;
    const text::ReplyFormat* calls = nullptr;  // of functions, where the template shows any
    /// The template shows none: the conversation tells of them, in its system message where there
    /// is one.
    bool told = false, system = true;
    std::vector<int64_t> ends;
    /// ChatPrompt::render().
    text::MarkedText render(text::Chat chat, bool goes_on = false) const;
  };
  Chats chats_of(const std::string& source, const std::string& where) const;

  std::optional<Chats> conversation;
  std::string no_chat;                // why not, where there is none
  std::vector<int64_t> ends;          // of texts; those of conversations too
  std::vector<std::string> specials;  // what the vocabulary calls its special tokens
  std::optional<int64_t> mask;        // what fill-mask looks for
  /// What stands before, behind and for the middle of a text, where the model fills it in.
  struct Middle {
    int64_t prefix = 0, suffix = 0, middle = 0;
    std::optional<int64_t> file;  // before the name and the text of another file
  };
  std::optional<Middle> fim;
  infer::EmbedOptions embedding;
  spec::KvOptions kv;
  infer::Speculation guesses;  // off where it cannot do so
  std::string no_guesses;      // why, where others do
  int64_t longest = 0, bytes = 0, parameters = 0;
  std::string fingerprint;
  mutable Constraints constraints;

  // of the engine's thread
  std::unique_ptr<infer::PrefixCache> cache;
  std::unique_ptr<infer::Engine> engine;

 private:
  std::string tool_format_;
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
  /// Calls `use` at once where the model is loaded, else later on a thread of the pool.
  void with(const ModelEntry& entry, Use use);
  /// Gives its memory up. Throws ApiError 409 while somebody uses it.
  void unload(const ModelEntry& entry);
  /// Where it is loaded.
  ServedModelPtr loaded(const std::string& id) const;
  /// Loads one now.
  ServedModelPtr load(const ModelEntry& entry);

 private:
  void run();
  void gave_up();
  void give_up_idle();
  void make_room(int64_t bytes, std::unique_lock<std::mutex>& lock);
  int64_t used() const;

  std::vector<ModelEntry> entries_;
  ModelOptions options_;
  const int64_t budget_;
  Metrics& metrics_;
  std::map<std::string, int64_t> bytes_;  // of each model's weights
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<ServedModelPtr> loaded_;                                   // the last used first
  std::map<std::string, std::chrono::steady_clock::time_point> used_;  // when last
  std::map<std::string, std::vector<Use>> waiting_;
  std::list<std::string> asked_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::serve
