// A task file and its few-shot prompts, a document of the benchmarks by name, and a file of stored
// results.
#include "files.h"

#include "tessera/infer/evaluation/choice_benchmarks.h"
#include "tessera/infer/evaluation/result_lines.h"
#include "tessera/infer/evaluation/ruler_questions.h"
#include "tessera/infer/evaluation/task_file.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(task_file) {
  static const fuzz::Folder folder;
  const auto path = folder.put("data", fuzz::text_of(input));
  fuzz::run(
      [&] {
        const infer::TaskFile task = infer::read_task_file(path);
        for (const infer::TaskExample& example : task.examples)
          for (const int64_t gold : example.gold)
            fuzz::check(gold >= 0 && gold < std::ssize(example.choices), "a choice that exists");
        infer::prompt_of(task, 0, {.examples = 2});
      },
      {ErrorKind::file, ErrorKind::input, ErrorKind::usage});
  static const std::vector<infer::ChoiceBenchmark> benchmarks = [] {
    std::vector<infer::ChoiceBenchmark> all;
    for (const std::string& name : infer::choice_benchmarks()) all.emplace_back(name);
    return all;
  }();
  for (const infer::ChoiceBenchmark& benchmark : benchmarks)
    fuzz::run(
        [&] { benchmark.example(spec::parse_json(fuzz::text_of(input), "document"), "document"); },
        {ErrorKind::file});
  fuzz::run(
      [&] {
        const infer::RulerQuestions questions = infer::read_ruler_questions(path);
        for (const infer::RulerQuestions::Question& one : questions.questions)
          fuzz::check(!one.answers.empty() && !one.documents.empty() &&
                          one.documents[0] < questions.documents.size(),
                      "a question has an answer and a document");
      },
      {ErrorKind::file, ErrorKind::input});
  fuzz::run([&] { infer::ResultLines(path, spec::Json::object()); },
            {ErrorKind::file, ErrorKind::input, ErrorKind::usage});
}
