// Where texts are made and read: requests come and go between steps, and a step is one call of the
// model, in which rows that decode go on by a token (with guesses, by several) and prompts are read
// in cuts. A request may ask how likely its own tokens are, and for nothing else: then any model
// with a head answers.
//
// What a request says follows from the model, the request and how keys and values are kept: not
// from the requests beside it, nor from when it came, how its prompt was cut, what the budget of a
// step is, what a cache held or what was guessed. One that fails ends alone, with its error.
#pragma once

#include <map>
#include <memory>

#include "tessera/infer/engine/task.h"
#include "tessera/infer/speculation/drafter.h"
#include "tessera/infer/speculation/draft_length.h"

namespace tessera::infer {

/// Over the life of an engine.
struct EngineCounts {
  int64_t prefill_tokens = 0;  // computed of what requests began with, sources included
  int64_t decode_tokens = 0;   // chosen after the first of a request
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // of speculation
  /// Of steps, by the tokens that they fed; making guesses is part of decoding.
  double prefill_seconds = 0, decode_seconds = 0;
  /// Tokens a second that decoding would have given without guesses, where they are paced; else 0.
  double plain_tokens_per_s = 0;
};

/// For one thread at a time. Holds no more rows than requests have at a time; the memory of each is
/// what it has been fed, whatever it may come to.
class Engine {
 public:
  struct Options {
    const text::Tokenizer* tokenizer = nullptr;  // none: tokens alone
    Speculation speculation = {};
    PrefixCache* cache = nullptr;  // of this model
    spec::KvOptions kv = {};
    nn::StatisticSink statistics = nullptr;  // takes what parts of the model count
    const CancelToken* cancel = nullptr;     // ends all requests, also within a call of the model
  };
  /// The model, and all that the options name, must outlive it. Throws Error(usage) for options
  /// that do not suit it.
  Engine(const model::Model& model, const Options& options);
  ~Engine();

  using Id = int64_t;
  /// Takes part from the next step on. Throws Error(usage) or Error(input) for a request that
  /// cannot be served, as of new tokens by a model that cannot generate.
  Id submit(const Request& request);
  /// Several texts that go on from one beginning, which is read once: requests of Writing::choice 0
  /// to n - 1, each of which says what it says alone. `each` may give one listeners of its own;
  /// targets are the first one's.
  std::vector<Id> submit_choices(const Request& request,
                                 int64_t n,
                                 const std::function<void(int64_t choice, Request&)>& each = {});
  /// Ends a request before the next step.
  void cancel(Id id);
  /// A request that rests keeps its rows as they are, and takes part in no step; so do those that
  /// wait for it to read what they begin with.
  void set_paused(Id id, bool paused);
  /// One call of the model. `budget`: tokens of prompts, beside what decodes; at least 1. False
  /// when no request is left to go on.
  bool step(int64_t budget);

  struct Result {
    Generation generation;
    std::optional<SavedState> kept;  // where the request asked for it
  };
  bool done(Id id) const;
  /// What became of a request that is done, once.
  Result take(Id id);

  const EngineCounts& counts() const { return counts_; }
  /// The memory of all rows.
  const model::State& state() const { return batcher_.state(); }

 private:
  struct Job;
  /// That a row belongs to.
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
  std::map<Id, std::unique_ptr<Job>> jobs_;  // by arrival
  std::vector<Job*> owners_;                 // of the batcher's rows, by number
  Id next_ = 0;
  EngineCounts counts_;
};

}  // namespace tessera::infer
