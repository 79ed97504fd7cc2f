// `eval --task` with a task of RULER.
#include <algorithm>
#include <optional>

#include "tessera/base/sha256.h"
#include "tessera/cli/eval_task.h"
#include "tessera/infer/evaluation/ruler_questions.h"

namespace tessera::cli {
namespace {

using infer::Estimate;
using infer::RulerTask;

/// Where an example belongs: its length, and the depth of each of its answers.
struct RulerPlace {
  size_t length = 0;
  std::vector<size_t> depths = {};
};

/// Scores of one length, and of needles of one depth.
struct RulerCell {
  int64_t length = 0;
  std::optional<double> depth = {};
  int64_t answers = 0;
  Estimate recall = {};
  std::optional<Estimate> all_found = {};
};

/// The share of found answers; Wilson's interval if each example has one.
Estimate recall_of(const std::vector<std::vector<int64_t>>& found, uint64_t seed) {
  int64_t hits = 0;
  bool single = true;
  std::vector<double> shares;
  for (const std::vector<int64_t>& own : found) {
    int64_t sum = 0;
    for (const int64_t one : own) sum += one;
    hits += sum;
    single = single && own.size() == 1;
    shares.push_back(static_cast<double>(sum) / static_cast<double>(own.size()));
  }
  return single ? infer::proportion(hits, std::ssize(found)) : infer::mean_of(shares, seed);
}

std::vector<RulerCell> cells_of(const RulerTask& task,
                                const std::vector<int64_t>& lengths,
                                const std::vector<double>& depths,
                                const std::vector<RulerPlace>& places,
                                const std::vector<Json>& lines,
                                uint64_t seed) {
  std::vector<RulerCell> cells;
  for (size_t d = 0; d < std::max<size_t>(1, depths.size()); ++d)
    for (size_t l = 0; l < lengths.size(); ++l) {
      RulerCell cell{.length = lengths[l]};
      std::vector<std::vector<int64_t>> found;
      int64_t all = 0;
      for (size_t i = 0; i < places.size(); ++i) {
        if (places[i].length != l) continue;
        auto of_example = lines[i].at("found").get<std::vector<int64_t>>();
        // of a question one of its answers is enough
        if (task.kind == RulerTask::Kind::questions)
          of_example = {*std::max_element(of_example.begin(), of_example.end())};
        std::vector<int64_t> own;
        for (size_t a = 0; a < of_example.size(); ++a)
          if (!task.by_depth() || places[i].depths.at(a) == d) own.push_back(of_example[a]);
        if (own.empty()) continue;
        cell.answers += std::ssize(own);
        all += std::find(own.begin(), own.end(), 0) == own.end() ? 1 : 0;
        found.push_back(std::move(own));
      }
      cell.recall = recall_of(found, seed);
      if (task.by_depth())
        cell.depth = depths[d];
      else if (task.kind != RulerTask::Kind::questions)
        cell.all_found = infer::proportion(all, std::ssize(found));
      cells.push_back(std::move(cell));
    }
  return cells;
}

void print_cells(const std::vector<RulerCell>& cells, const std::vector<int64_t>& lengths) {
  if (!cells.front().depth) {
    fmt::print("{:>8}  {:<26}{}\n", "length", "recall", cells.front().all_found ? "all found" : "");
    for (const RulerCell& cell : cells)
      fmt::print("{:>8}  {:<26}{}\n", cell.length, with_interval(cell.recall),
                 cell.all_found ? with_interval(*cell.all_found) : "");
    return;
  }
  fmt::print("{:>8}", "depth");
  for (const int64_t length : lengths) fmt::print("{:>25}", fmt::format("{} tokens", length));
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i % lengths.size() == 0) fmt::print("\n{:>8.2f}", *cells[i].depth);
    fmt::print("  {}", with_interval(cells[i].recall));
  }
  fmt::print("\n");
}

}  // namespace

int evaluate_ruler(EvalTask& o,
                   const RulerTask& task,
                   const infer::LoadedModel& loaded,
                   bool json) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "eval", "the model has no tokenizer; expected one for {}", task.name);
  if (o.options.few_shot.examples > 0)
    fail(ErrorKind::usage, "eval", "--few-shot with --task {}; expected a file or a benchmark",
         task.name);
  if (!task.by_depth() && !o.depths_.empty())
    fail(ErrorKind::usage, "eval", "--depths with --task {}; expected it with a task of needles",
         task.name);
  if (o.max_new_tokens_->count() == 0) o.options.max_new_tokens = task.answer_tokens;
  if (o.stop_->count() == 0) o.options.stop_strings.clear();
  const int64_t context = infer::longest_sequence(loaded.model.spec(), 0);
  std::vector<int64_t> lengths = o.lengths_;
  if (lengths.empty())
    for (const int64_t length : {1024, 2048, 4096})
      if (context == 0 || length <= context) lengths.push_back(length);
  if (lengths.empty()) lengths = {context};
  for (const int64_t length : lengths)
    if (context > 0 && length > context)
      fail(ErrorKind::usage, "eval", "--lengths {}; the model's context has {} tokens", length,
           context);
  std::vector<double> depths = o.depths_;
  for (int i = 0; task.by_depth() && o.depths_.empty() && i <= 10; ++i) depths.push_back(i / 10.0);

  if (o.haystack.empty() && o.reads_haystack())
    fmt::print(stderr, "tessera: haystack: lines of filler (--text FILE for essays)\n");
  const std::vector<std::string> essay =
      o.haystack.empty() ? std::vector<std::string>() : infer::sentences_of(o.haystack);
  const bool asks = task.kind == RulerTask::Kind::questions;
  if (asks && o.data.data.size() != 1)
    fail(ErrorKind::usage, "eval", "--task {} with {} files; expected --data FILE, a file of {}",
         task.name, o.data.data.size(), task.name == "qa_1" ? "SQuAD 2.0" : "HotpotQA");
  const infer::RulerQuestions questions =
      asks ? infer::read_ruler_questions(o.data.data.front()) : infer::RulerQuestions();
  if (asks) o.examples_ = std::min<int64_t>(o.examples_, std::ssize(questions.questions));
  infer::TaskFile file;
  file.kind = infer::TaskKind::retrieval;
  std::vector<RulerPlace> places;
  const auto n_depths = static_cast<int64_t>(std::max<size_t>(1, depths.size()));
  for (size_t l = 0; l < lengths.size(); ++l) {
    const RandomKey key =
        RandomKey(o.options.seed).fold(task.name).fold(static_cast<uint64_t>(lengths[l]));
    for (int64_t i = 0; i < o.examples_ * n_depths; ++i) {
      cancel_token().check("eval");
      RulerPlace place{.length = l};
      std::vector<double> own;
      // the answers of an example are at different depths, each as often at every one
      for (int64_t a = 0; task.by_depth() && a < task.n_answers(); ++a) {
        place.depths.push_back(static_cast<size_t>((i + a) % n_depths));
        own.push_back(depths[place.depths.back()]);
      }
      const RandomKey of_example = key.fold(static_cast<uint64_t>(i));
      const int64_t length = lengths[l] - (o.options.bos ? 1 : 0);
      infer::RulerExample made =
          asks ? infer::make_ruler_question(questions, static_cast<size_t>(i), task,
                                            *loaded.tokenizer, length, of_example)
               : infer::make_ruler(task, *loaded.tokenizer, length, own, essay, of_example);
      file.examples.push_back(
          {.context = std::move(made.prompt), .answers = std::move(made.answers)});
      places.push_back(std::move(place));
    }
  }
  Json evaluation = o.description();
  evaluation.update({{"task", task.name},
                     {"lengths", lengths},
                     {"depths", depths},
                     {"examples", o.examples_},
                     {"haystack_sha256", o.haystack.empty() ? "" : sha256(o.haystack)}});
  if (asks) evaluation["data_sha256"] = sha256_file(o.data.data.front());
  infer::ResultLines results =
      o.out_.empty() ? infer::ResultLines() : infer::ResultLines(o.out_, evaluation);
  o.options.progress = example_counter();
  o.options.limit = 0;
  const infer::TaskReport report = infer::evaluate_task(loaded, file, o.options, results);
  if (report.resumed > 0)
    fmt::print(stderr, "tessera: {} of {} examples from {}\n", report.resumed, report.examples,
               o.out_);
  const std::vector<RulerCell> cells =
      cells_of(task, lengths, depths, places, report.lines, o.options.seed);
  if (json) {
    Json list = Json::array();
    for (const RulerCell& cell : cells) {
      Json one = {{"length", cell.length}};
      if (cell.depth) one["depth"] = *cell.depth;
      one.update({{"answers", cell.answers}, {"recall", cell.recall.to_json()}});
      if (cell.all_found) one["all_found"] = cell.all_found->to_json();
      list.push_back(std::move(one));
    }
    Json scores = Json::object();
    // of questions, those of the cells
    for (const auto& [name, score] : report.scores)
      if (!asks) scores[name] = score.to_json();
    print_json({{"task", task.name},
                {"seed", o.options.seed},
                {"examples", report.examples},
                {"scores", scores},
                {"cells", list}});
    return kExitOk;
  }
  fmt::print("{}, {} examples of {}; share of {}, with 95 % intervals\n", task.name, o.examples_,
             task.by_depth() ? "each length and depth" : "each length",
             asks ? "the questions of which an answer is found" : "the answers found");
  print_cells(cells, lengths);
  return kExitOk;
}

}  // namespace tessera::cli
