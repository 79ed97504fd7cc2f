// Files of evaluation tasks: multiple choice and generation, and few-shot prompts from them.
// Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/spec/json.h"

namespace tessera::infer {

enum class TaskKind { multiple_choice, generation };

/// One example. The keys are those of lm-evaluation-harness documents after doc_to_text,
/// doc_to_choice and doc_to_target.
struct TaskExample {
  std::string context;               // "context", "query" or "prompt"
  std::string delimiter = " ";       // "delimiter": between context and answer
  std::vector<std::string> choices;  // "choices", of multiple choice
  /// "gold" or "answer": the number of the right choice from 0, its text, or a list of these.
  std::vector<int64_t> gold;
  std::vector<std::string> answers;  // "answers" or "answer", of generation: right answers
};

struct TaskFile {
  TaskKind kind = TaskKind::multiple_choice;
  std::vector<TaskExample> examples;
  std::string sha256;  // of the file
};

/// JSON lines, or a JSON array of objects; "-" = standard input. All examples have one kind:
/// multiple choice if they have "choices". Throws Error(file) naming the line or element.
TaskFile read_task_file(const std::filesystem::path& path, const CancelToken* cancel = nullptr);

struct FewShot {
  int64_t examples = 0;  // solved examples before each context
  uint64_t seed = 0;     // of their choice
  /// Their source; nullptr = the other examples of the task.
  const TaskFile* source = nullptr;
};

/// The context of example `number` after its few-shot examples (context, delimiter and right
/// answer), separated by blank lines. Every example draws its own without replacement. Throws
/// Error(usage) if there are fewer of them, or they have another kind.
std::string prompt_of(const TaskFile& task, int64_t number, const FewShot& few_shot);

}  // namespace tessera::infer
