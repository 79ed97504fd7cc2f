#include "tessera/infer/evaluation/task.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tessera/text/answer_scores.h"
#include "tessera/text/corpus_scores.h"
#include "tessera/text/utf8.h"

namespace tessera::infer {
namespace {

using spec::Json;

std::vector<int64_t> wide(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

/// The token in place of an empty context.
int64_t first_token(const text::Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos()) return *bos;
  if (const auto eos = tokenizer.eos()) return *eos;
  fail(ErrorKind::input, "eval",
       "an empty context, and the tokenizer has no BOS or end-of-text token; expected a context");
}

int64_t characters_in(const std::string& text) {
  int64_t count = 0;
  text::for_each_character(text, [&](char32_t, size_t, size_t) { ++count; });
  return count;
}

std::string lower_case(const std::string& text) {
  std::string out;
  text::for_each_character(text,
                           [&](char32_t c, size_t, size_t) { text::append_lower_case(out, c); });
  return out;
}

/// The first of the largest.
int64_t best_of(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

void check_finite(double log_likelihood) {
  if (!std::isfinite(log_likelihood))
    fail(ErrorKind::input, "eval",
         "a log-likelihood is {}: the model gives logits that are not finite; expected a model "
         "with finite weights",
         log_likelihood);
}

/// A choice of an example of the batch, after its context or after an empty one.
struct ChoiceRequest {
  size_t example = 0;
  bool conditional = true;
  Continuation text;
};

/// Cache of the prefixes that requests have in common, if the model can resume from them.
void make_cache(const model::Model& model, std::optional<PrefixCache>& cache) {
  try {
    cache.emplace(model, PrefixCacheOptions{});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
  }
}

class TaskRun {
 public:
  TaskRun(const LoadedModel& loaded, const TaskFile& task, const TaskOptions& options)
      : loaded_(loaded),
        tokenizer_(*loaded.tokenizer),
        task_(task),
        options_(options),
        limit_(longest_sequence(loaded.model.spec(), 0)) {
    make_cache(loaded.model, cache_);
  }

  /// Results of `n` examples from `begin` on.
  std::vector<Json> batch(int64_t begin, int64_t n, TaskReport& report) {
    const bool generated = task_.kind == TaskKind::generation || task_.kind == TaskKind::retrieval;
    return generated ? answers(begin, n, report) : choices(begin, n, report);
  }

 private:
  std::vector<Json> choices(int64_t begin, int64_t n, TaskReport& report) {
    std::vector<ChoiceRequest> asked;
    for (int64_t i = 0; i < n; ++i) {
      const TaskExample& example = task_.examples[static_cast<size_t>(begin + i)];
      const std::string prompt = prompt_of(task_, begin + i, options_.few_shot);
      for (const bool conditional : {true, false}) {
        if (!conditional && !options_.mutual_information) continue;
        for (size_t c = 0; c < example.choices.size(); ++c) {
          const std::string own = example.contexts.empty() ? "" : example.contexts[c];
          asked.push_back(
              {static_cast<size_t>(i), conditional,
               encode_continuation(tokenizer_, conditional ? prompt + own : "",
                                   example.delimiter + example.choices[c], limit_, options_.bos)});
        }
      }
    }
    Engine engine(
        loaded_.model,
        {.cache = cache_ ? &*cache_ : nullptr, .kv = options_.kv, .cancel = options_.cancel});
    std::vector<Engine::Id> ids;
    for (const ChoiceRequest& one : asked) {
      // the last token is never an input
      Sequence text{.tokens = {one.text.tokens.begin(), one.text.tokens.end() - 1}};
      ids.push_back(engine.submit(
          scoring(std::move(text),
                  {.begin = one.text.context - 1,
                   .ids = {one.text.tokens.begin() + one.text.context, one.text.tokens.end()}})));
    }
    while (engine.step(kTokensAtOnce)) {
    }
    std::vector<std::vector<double>> given(static_cast<size_t>(n)), alone(static_cast<size_t>(n));
    std::vector<bool> greedy(static_cast<size_t>(n), false);  // of the last choice
    for (size_t r = 0; r < asked.size(); ++r) {
      const Generation result = finished(engine.take(ids[r]).generation);
      (asked[r].conditional ? given : alone)[asked[r].example].push_back(-result.score.nats);
      if (asked[r].conditional)
        greedy[asked[r].example] = result.score.hits == result.score.targets;
      report.cached_tokens += result.cached_tokens;
    }
    report.computed_tokens += engine.counts().prefill_tokens;
    std::vector<Json> lines;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i)
      lines.push_back(
          task_.kind == TaskKind::continuation
              ? continuation_result(given[i].front(), greedy[i])
              : choice_result(task_.examples[static_cast<size_t>(begin) + i], given[i], alone[i]));
    return lines;
  }

  std::vector<Json> answers(int64_t begin, int64_t n, TaskReport& report) {
    std::vector<std::vector<int64_t>> prompts;
    for (int64_t i = 0; i < n; ++i) {
      const std::string prompt = prompt_of(task_, begin + i, options_.few_shot);
      std::vector<int64_t> ids = wide(tokenizer_.encode(prompt, {.add_special = options_.bos}));
      if (ids.empty()) ids.push_back(first_token(tokenizer_));
      const int64_t room = std::max<int64_t>(1, limit_ - options_.max_new_tokens);
      if (limit_ > 0 && std::ssize(ids) > room) ids.erase(ids.begin(), ids.end() - room);
      prompts.push_back(std::move(ids));
    }
    GenerateOptions how;
    how.max_new_tokens = options_.max_new_tokens;
    how.stop_ids = eos_ids(loaded_);
    how.stop_strings = options_.stop_strings;
    how.kv = options_.kv;
    how.cancel = options_.cancel;
    how.prefix_cache = cache_ ? &*cache_ : nullptr;
    how.sampling.temperature = 0;
    const Generations made = generate(loaded_.model, &tokenizer_, prompts, how);
    report.computed_tokens += made.prefill_tokens;
    std::vector<Json> lines;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const Generation& result = finished(made.rows[i]);
      report.cached_tokens += result.cached_tokens;
      const TaskExample& example = task_.examples[static_cast<size_t>(begin) + i];
      const std::string said = text::to_valid_utf8(result.text);
      lines.push_back(task_.kind == TaskKind::retrieval ? retrieval_result(example, said)
                                                        : answer_result(example, said));
    }
    return lines;
  }

  const Generation& finished(const Generation& result) const {
    if (result.error) std::rethrow_exception(result.error);
    if (options_.cancel != nullptr) options_.cancel->check("eval");
    return result;
  }
  Generation finished(Generation&& result) const {
    finished(result);
    return std::move(result);
  }

  static constexpr int64_t kTokensAtOnce = 1024;  // per call of the model

  const LoadedModel& loaded_;
  const text::Tokenizer& tokenizer_;
  const TaskFile& task_;
  const TaskOptions& options_;
  const int64_t limit_;
  std::optional<PrefixCache> cache_;
};

/// Share of the right choices in the sum of the probabilities of all.
double right_mass(const Json& line) {
  const auto values = line.at("log_likelihoods").get<std::vector<double>>();
  const double most = *std::max_element(values.begin(), values.end());
  double sum = 0, right = 0;
  for (const double value : values) sum += std::exp(value - most);
  for (const Json& gold : line.at("gold")) right += std::exp(values.at(gold.get<size_t>()) - most);
  return right / sum;
}

void score_choices(const TaskFile& task,
                   const std::vector<Json>& lines,
                   uint64_t seed,
                   TaskReport& report) {
  for (const char* name : {"acc", "acc_norm", "acc_bytes", "acc_mutual_info"}) {
    if (!lines.front().contains(name)) continue;
    int64_t hits = 0;
    for (const Json& line : lines) hits += line.at(name).get<int64_t>();
    report.scores.emplace_back(name, proportion(hits, std::ssize(lines)));
  }
  if (std::find(task.scores.begin(), task.scores.end(), "mc2") == task.scores.end()) return;
  std::vector<double> masses;
  for (const Json& line : lines) masses.push_back(right_mass(line));
  report.scores.emplace_back("mc2", mean_of(masses, seed));
}

void score_continuations(const std::vector<Json>& lines, uint64_t seed, TaskReport& report) {
  int64_t hits = 0;
  std::vector<double> values;
  for (const Json& line : lines) {
    hits += line.at("acc").get<int64_t>();
    values.push_back(line.at("log_likelihood").get<double>());
  }
  report.scores.emplace_back("acc", proportion(hits, std::ssize(lines)));
  report.scores.emplace_back(
      "perplexity", bootstrap(std::ssize(lines), seed, [&](std::span<const int64_t> chosen) {
        double sum = 0;
        for (const int64_t i : chosen) sum += values[static_cast<size_t>(i)];
        return std::exp(-sum / static_cast<double>(chosen.size()));
      }));
}

void score_retrieval(const std::vector<Json>& lines, uint64_t seed, TaskReport& report) {
  int64_t all = 0;
  std::vector<double> shares;
  for (const Json& line : lines) {
    const auto found = line.at("found").get<std::vector<int64_t>>();
    const auto hits = std::count(found.begin(), found.end(), 1);
    all += hits == std::ssize(found) ? 1 : 0;
    shares.push_back(static_cast<double>(hits) / static_cast<double>(found.size()));
  }
  report.scores.emplace_back("recall", mean_of(shares, seed));
  report.scores.emplace_back("all_found", proportion(all, std::ssize(lines)));
}

void score_answers(const TaskFile& task,
                   const std::vector<Json>& lines,
                   uint64_t seed,
                   TaskReport& report) {
  int64_t hits = 0;
  std::vector<double> f1, rouge;
  std::vector<text::CorpusScores> corpora(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    hits += lines[i].at("exact_match").get<int64_t>();
    f1.push_back(lines[i].at("f1").get<double>());
    rouge.push_back(lines[i].at("rouge_l").get<double>());
    corpora[i].add(lines[i].at("answer").get<std::string>(), task.examples[i].answers.front());
  }
  const auto of_corpus = [&](double (text::CorpusScores::*score)() const) {
    return bootstrap(std::ssize(lines), seed, [&](std::span<const int64_t> chosen) {
      text::CorpusScores sum;
      for (const int64_t i : chosen) sum += corpora[static_cast<size_t>(i)];
      return (sum.*score)();
    });
  };
  report.scores.emplace_back("exact_match", proportion(hits, std::ssize(lines)));
  report.scores.emplace_back("f1", mean_of(f1, seed));
  report.scores.emplace_back("rouge_l", mean_of(rouge, seed));
  report.scores.emplace_back("bleu", of_corpus(&text::CorpusScores::bleu));
  report.scores.emplace_back("chrf", of_corpus(&text::CorpusScores::chrf));
}

}  // namespace

Continuation encode_continuation(const text::Tokenizer& tokenizer,
                                 const std::string& context,
                                 const std::string& continuation,
                                 int64_t limit,
                                 bool bos) {
  // what Python's str.rstrip() removes of ASCII
  const size_t end = context.find_last_not_of(" \t\n\r\f\v") + 1;
  const std::string kept = context.substr(0, end), rest = context.substr(end) + continuation;
  Continuation out;
  if (kept.empty()) {
    const std::vector<int64_t> ids = wide(tokenizer.encode(rest, {.add_special = false}));
    out.tokens.push_back(first_token(tokenizer));
    out.context = 1;
    // a continuation that begins with that token has it as context
    const size_t skipped = !ids.empty() && ids.front() == out.tokens.front() ? 1 : 0;
    out.tokens.insert(out.tokens.end(), ids.begin() + static_cast<int64_t>(skipped), ids.end());
  } else {
    out.context = std::ssize(tokenizer.encode(kept, {.add_special = false}));
    out.tokens = wide(tokenizer.encode(kept + rest, {.add_special = false}));
    if (bos && tokenizer.bos()) {
      out.tokens.insert(out.tokens.begin(), *tokenizer.bos());
      ++out.context;
    }
  }
  const int64_t length = std::ssize(out.tokens), scored = length - out.context;
  if (scored < 1 || out.context < 1)
    fail(ErrorKind::input, "eval", "\"{}\" adds no token to its context; expected a longer choice",
         continuation);
  if (limit > 0 && scored > limit)
    fail(ErrorKind::input, "eval", "a choice of {} tokens; expected at most the context of {}",
         scored, limit);
  if (limit > 0 && length > limit + 1) {
    const int64_t cut = length - limit - 1;
    out.tokens.erase(out.tokens.begin(), out.tokens.begin() + cut);
    out.context -= cut;
  }
  return out;
}

Json continuation_result(double log_likelihood, bool greedy) {
  check_finite(log_likelihood);
  return {{"log_likelihood", log_likelihood}, {"acc", greedy ? 1 : 0}};
}

Json choice_result(const TaskExample& example,
                   const std::vector<double>& log_likelihoods,
                   const std::vector<double>& unconditional) {
  std::vector<double> by_characters, by_bytes, gains;
  for (size_t c = 0; c < log_likelihoods.size(); ++c) {
    const std::string& choice = example.choices[c];
    check_finite(log_likelihoods[c]);
    by_characters.push_back(log_likelihoods[c] / static_cast<double>(characters_in(choice)));
    by_bytes.push_back(log_likelihoods[c] / static_cast<double>(choice.size()));
    if (!unconditional.empty()) gains.push_back(log_likelihoods[c] - unconditional[c]);
  }
  const auto right = [&](const std::vector<double>& values) {
    return std::count(example.gold.begin(), example.gold.end(), best_of(values)) > 0 ? 1 : 0;
  };
  Json line = {{"log_likelihoods", log_likelihoods},
               {"choice", best_of(log_likelihoods)},
               {"gold", example.gold},
               {"acc", right(log_likelihoods)},
               {"acc_norm", right(by_characters)},
               {"acc_bytes", right(by_bytes)}};
  if (!gains.empty()) line["acc_mutual_info"] = right(gains);
  return line;
}

Json retrieval_result(const TaskExample& example, const std::string& answer) {
  const std::string said = lower_case(answer);
  std::vector<int64_t> found;
  for (const std::string& right : example.answers)
    found.push_back(said.find(lower_case(right)) != std::string::npos ? 1 : 0);
  return {{"answer", answer}, {"found", found}};
}

Json answer_result(const TaskExample& example, const std::string& answer) {
  double rouge = 0;
  for (const std::string& right : example.answers)
    rouge = std::max(rouge, text::rouge_l(right, answer));
  return {{"answer", answer},
          {"exact_match", text::best_exact_match(example.answers, answer) > 0 ? 1 : 0},
          {"f1", text::best_answer_f1(example.answers, answer)},
          {"rouge_l", rouge}};
}

TaskReport evaluate_task(const LoadedModel& loaded,
                         const TaskFile& task,
                         const TaskOptions& options,
                         ResultLines& results) {
  check_generates(loaded.model);
  if (loaded.model.spec().encoder)
    fail(ErrorKind::usage, "eval", "a task needs a decoder; this model answers a source");
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "eval", "the model has no tokenizer; expected one for texts");
  TaskReport report;
  report.examples = std::ssize(task.examples);
  if (options.limit > 0) report.examples = std::min(report.examples, options.limit);
  std::vector<Json> lines = results.done();
  if (std::ssize(lines) > report.examples) lines.resize(static_cast<size_t>(report.examples));
  report.resumed = std::ssize(lines);
  TaskRun run(loaded, task, options);
  while (std::ssize(lines) < report.examples) {
    const int64_t begin = std::ssize(lines);
    const int64_t n = std::min(options.at_once, report.examples - begin);
    if (options.cancel != nullptr) options.cancel->check("eval");
    for (Json& result : run.batch(begin, n, report)) {
      Json line = {{"index", std::ssize(lines)}};
      line.update(result);
      results.add(line);
      lines.push_back(std::move(line));
    }
    if (options.progress) options.progress(std::ssize(lines), report.examples);
  }
  try {
    if (task.kind == TaskKind::multiple_choice)
      score_choices(task, lines, options.seed, report);
    else if (task.kind == TaskKind::continuation)
      score_continuations(lines, options.seed, report);
    else if (task.kind == TaskKind::retrieval)
      score_retrieval(lines, options.seed, report);
    else
      score_answers(task, lines, options.seed, report);
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::file, "eval",
         "stored results have other scores than this evaluation; expected another --out");
  }
  if (!task.scores.empty())
    std::erase_if(report.scores, [&](const auto& score) {
      const auto& names = task.scores;
      return std::find(names.begin(), names.end(), score.first) == names.end() &&
             score.first != "acc_mutual_info";
    });
  report.lines = std::move(lines);
  return report;
}

}  // namespace tessera::infer
