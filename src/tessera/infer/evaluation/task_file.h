// Files of evaluation tasks: multiple choice, log-likelihood of a continuation, generation and
// retrieval, and few-shot prompts from them.
// Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/spec/json.h"

namespace tessera::infer {

enum class TaskKind {
  multiple_choice,
  continuation,  // log-likelihood of one continuation
  generation,
  retrieval,  // generation; the share of the right answers that it contains
};

/// One example. The keys are those of lm-evaluation-harness documents after doc_to_text,
/// doc_to_choice and doc_to_target.
struct TaskExample {
  std::string context = {};               // "context", "query" or "prompt"
  std::string delimiter = " ";            // "delimiter": between context and answer
  std::string description = {};           // "description": before the few-shot examples
  std::vector<std::string> choices = {};  // "choices", of multiple choice; or one "continuation"
  /// "contexts": of multiple choice with one context for each choice, after which the continuation
  /// is scored (partial evaluation, Trinh and Le 2018, arXiv:1806.02847). Else empty.
  std::vector<std::string> contexts = {};
  /// "gold" or "answer": the number of the right choice from 0, its text, or a list of these.
  std::vector<int64_t> gold = {};
  std::vector<std::string> answers = {};  // "answers" or "answer", of generation; "contains"
};

struct TaskFile {
  TaskKind kind = TaskKind::multiple_choice;
  std::vector<TaskExample> examples;
  std::string sha256;  // of the file
  /// Names of the scores to report; empty = all of the kind.
  std::vector<std::string> scores = {};
};

/// The example of a JSON object and its kind. Throws Error(file) with `place`.
std::pair<TaskExample, TaskKind> task_example(const spec::Json& json, const std::string& place);

/// Adds an example. Throws Error(file) if its kind is not that of the ones before.
void add_example(TaskFile& file,
                 std::pair<TaskExample, TaskKind> example,
                 const std::string& place);

/// JSON lines, or a JSON array of objects; "-" = standard input. All examples have one kind:
/// multiple choice if they have "choices" or "contexts", log-likelihood if they have a
/// "continuation" only, retrieval if they have "contains" or are RULER's ("input", "outputs",
/// optional "answer_prefix"). Throws Error(file) naming the line or element.
TaskFile read_task_file(const std::filesystem::path& path, const CancelToken* cancel = nullptr);

struct FewShot {
  int64_t examples = 0;  // solved examples before each context
  uint64_t seed = 0;     // of their choice
  /// Their source; nullptr = the other examples of the task.
  const TaskFile* source = nullptr;
};

/// The context of example `number` after its description and its few-shot examples (context,
/// delimiter and right answer), separated by blank lines. Every example draws its own without
/// replacement. Throws Error(usage) if there are fewer of them, or they have another kind.
std::string prompt_of(const TaskFile& task, int64_t number, const FewShot& few_shot);

}  // namespace tessera::infer
