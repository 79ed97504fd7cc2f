// Inference engine with continuous batching. Requests join and leave between steps. A step is one
// call of the model: each decoding sequence advances by a token (several with speculative
// decoding), and prompts are prefilled in chunks. A request without new tokens scores its own
// tokens; any model with a head can do that.
//
// The output of a request depends on the model, the request and the KV cache type only. It does not
// depend on other requests, arrival time, chunking, the budget of a step, the prefix cache or
// speculation. A request that fails ends alone, with its error.
#pragma once

#include <map>
#include <memory>

#include "tessera/infer/engine/task.h"
#include "tessera/infer/speculation/drafter.h"
#include "tessera/infer/speculation/draft_length.h"

namespace tessera::infer {

/// Counters over the life of an engine.
struct EngineCounts {
  int64_t prefill_tokens = 0;  // computed prompt tokens, sources included; without cached ones
  int64_t decode_tokens = 0;   // generated tokens after the first of each request
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // speculative decoding
  int64_t replayed_steps = 0;     // calls that were a recorded step (model/recorded_steps.h)
  std::string recording_failure;  // why a step could not be recorded, "" = none failed
  /// Wall time of steps, divided by the tokens they fed. Drafting counts as decoding.
  double prefill_seconds = 0, decode_seconds = 0;
  /// Estimated decoding speed without speculation, tokens per second; 0 unless the draft length is
  /// adaptive.
  double plain_tokens_per_s = 0;
};

/// A line for EngineCounts::recording_failure.
std::string recording_note(const std::string& failure);

/// Runs requests on one model and owns their rows (KV cache, recurrent state) until they finish.
/// Memory grows with the tokens fed, not with the context length. Used by one thread at a time.
/// submit() throws for a request that it cannot serve; later errors of a request are in its result.
/// step() throws internal errors and those of the draft model only.
class Engine {
 public:
  struct Options {
    const text::Tokenizer* tokenizer = nullptr;  // none: no text, tokens only
    Speculation speculation = {};
    PrefixCache* cache = nullptr;  // of this model; may be shared by engines one after another
    spec::KvOptions kv = {};
    nn::StatisticSink statistics = nullptr;  // receives the model's statistics
    const CancelToken* cancel = nullptr;     // ends all requests, also during a call of the model
  };
  /// The model and everything in the options must outlive the engine. Throws Error(usage) for
  /// options that the model does not support.
  Engine(const model::Model& model, const Options& options);
  ~Engine();

  using Id = int64_t;
  /// Adds a request from the next step on. Throws Error(usage) or Error(input) for a request that
  /// the model cannot serve, for example new tokens from a model that cannot generate.
  Id submit(const Request& request);
  /// Submits n completions of one prompt, which is prefilled once: requests with
  /// DecodingOptions::choice 0 to n - 1. Each has the output that it would have alone. `each` may
  /// set callbacks of one choice. Only the first one gets the targets.
  std::vector<Id> submit_choices(const Request& request,
                                 int64_t n,
                                 const std::function<void(int64_t choice, Request&)>& each = {});
  /// Ends a request before the next step.
  void cancel(Id id);
  /// A paused request keeps its rows and takes part in no step. Requests that wait for it to
  /// prefill a shared prompt wait too.
  void set_paused(Id id, bool paused);
  /// One call of the model. `budget`: max. tokens of the call, at least 1; decoding rows always
  /// take part, prompts get the rest. Returns false when no request is left unfinished.
  bool step(int64_t budget);

  struct Result {
    Generation generation;
    std::optional<SavedState> kept;  // if Request::keep
  };
  bool done(Id id) const;
  /// Result of a finished request; may be called once.
  Result take(Id id);

  const EngineCounts& counts() const { return counts_; }
  /// State of all rows.
  const model::State& state() const { return batcher_.state(); }

 private:
  struct Job;
  /// The request that a row belongs to.
  Job& owner(size_t row);
  size_t add_row(Job& job);
  void drop_row(size_t row);
  void end(Job& job);
  void end_what_is_over();
  std::vector<Batcher::Work> plan(int64_t budget);
  void draft(std::vector<Batcher::Work>& work, int64_t budget);
  void feed(const std::vector<Batcher::Work>& work, int64_t budget);
  void book(const std::vector<Batcher::Work>& work, int64_t prefill, double seconds);
  void rebuild();
  void on_hidden();
  bool read(Job& job);
  void share(const Job& job);
  void decide(const std::vector<Batcher::Work>& work);
  void apply(Job& job, const DraftTree& drafts);

  const model::Model& model_;
  Options options_;
  Batcher batcher_;
  std::optional<Drafter> drafter_;
  std::optional<DraftLengthController> draft_length_;
  std::map<Id, std::unique_ptr<Job>> jobs_;  // in order of arrival
  std::vector<Job*> owners_;                 // request of each batcher row
  Id next_ = 0;
  EngineCounts counts_;
};

}  // namespace tessera::infer
