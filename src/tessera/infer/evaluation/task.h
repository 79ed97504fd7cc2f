// Evaluation of a model on a task file: multiple choice by log-likelihood, log-likelihood of a
// continuation, or generation scored against right answers or by the answers that it contains.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/infer/engine/generate.h"
#include "tessera/infer/evaluation/estimate.h"
#include "tessera/infer/evaluation/result_lines.h"
#include "tessera/infer/evaluation/task_file.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::infer {

/// A context and its continuation as tokens.
struct Continuation {
  std::vector<int64_t> tokens;
  int64_t context = 0;  // number of tokens that are context; at least 1
};

/// As lm-evaluation-harness encodes them (HFLM): trailing spaces of the context move to the
/// continuation, both are encoded together, and the first tokens, as many as the context alone has,
/// are context. An empty context is the BOS token, or the end-of-text token without one. `bos`: BOS
/// before every context. Longer than `limit` + 1 tokens (0 = no limit): cut on the left. Throws
/// Error(input) for a continuation of no or too many tokens.
Continuation encode_continuation(const text::Tokenizer& tokenizer,
                                 const std::string& context,
                                 const std::string& continuation,
                                 int64_t limit = 0,
                                 bool bos = false);

struct TaskOptions {
  FewShot few_shot;
  int64_t limit = 0;                // first examples only; 0 = all
  int64_t at_once = 16;             // examples per batch
  bool bos = false;                 // BOS before every context
  bool mutual_information = false;  // multiple choice: also acc_mutual_info
  int64_t max_new_tokens = 64;      // of generation
  std::vector<std::string> stop_strings = {"\n\n"};
  uint64_t seed = 0;  // of bootstrap intervals
  spec::KvOptions kv = {};
  const CancelToken* cancel = nullptr;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct TaskReport {
  int64_t examples = 0;
  int64_t resumed = 0;  // of these, from stored results
  /// In the order of the tables below; those of TaskFile::scores, if it has some.
  std::vector<std::pair<std::string, Estimate>> scores;
  int64_t computed_tokens = 0, cached_tokens = 0;  // prompt tokens; cached: shared prefixes
  std::vector<spec::Json> lines;                   // results of each example
};

/// Multiple choice, as lm-evaluation-harness counts it. The log-likelihood of a choice is that of
/// delimiter and choice after the context:
///   acc              the most likely choice is right; of equal ones, the first counts
///   acc_norm         by log-likelihood / characters of the choice
///   acc_bytes        by log-likelihood / UTF-8 bytes of the choice
///   acc_mutual_info  by log-likelihood - log-likelihood after an empty context
///   mc2              mean share of the right choices in the sum of all probabilities (TruthfulQA,
///                    Lin et al. 2021, arXiv:2109.07958); if TaskFile::scores has it
/// Log-likelihood of a continuation:
///   acc              each token of the continuation is the most likely one
///   perplexity       exp(-mean log-likelihood)
/// Generation, greedy decoding until a stop string:
///   exact_match, f1  of SQuAD (text/answer_scores.h), best over the answers
///   rouge_l          best over the answers
///   bleu, chrf       of the corpus, against the first answer (text/corpus_scores.h)
/// Retrieval, greedy decoding:
///   recall           mean share of the right answers that the text contains, in any case
///                    (RULER's string_match_all / 100)
///   all_found        the text contains all of them
/// Shares are 0 to 1; BLEU and chrF 0 to 100. All requests of a batch share the prefill of their
/// common prefixes, and so do batches if the model's state can be cached.
///
/// A line of `results`: "index", and for multiple choice "log_likelihoods", "choice" (the number of
/// the most likely), "gold", scores; for a continuation "log_likelihood" and "acc"; for generation
/// "answer" and scores; for retrieval "answer" and "found", a 0 or 1 for each right answer.
TaskReport evaluate_task(const LoadedModel& loaded,
                         const TaskFile& task,
                         const TaskOptions& options,
                         ResultLines& results);

/// The line of a multiple-choice example from the log-likelihoods of its choices; `unconditional`:
/// those after an empty context, or none.
spec::Json choice_result(const TaskExample& example,
                         const std::vector<double>& log_likelihoods,
                         const std::vector<double>& unconditional);
/// The line of a continuation. `greedy`: each of its tokens is the most likely one.
spec::Json continuation_result(double log_likelihood, bool greedy);
/// The line of a text that should contain the answers.
spec::Json retrieval_result(const TaskExample& example, const std::string& answer);
/// The line of a generated answer.
spec::Json answer_result(const TaskExample& example, const std::string& answer);

}  // namespace tessera::infer
