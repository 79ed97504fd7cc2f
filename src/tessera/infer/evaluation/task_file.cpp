#include "tessera/infer/evaluation/task_file.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"
#include "tessera/base/sha256.h"
#include "tessera/base/text_input.h"

namespace tessera::infer {
namespace {

using spec::Json;

constexpr const char* kBlankLine = "\n\n";  // between few-shot examples, as lm-evaluation-harness

const Json* first_of(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end()) return &*found;
  return nullptr;
}

std::string text_of(const Json& value, const std::string& place, const char* key) {
  if (!value.is_string())
    fail(ErrorKind::file, place, "\"{}\" is {}; expected a string", key, spec::kind_of(value));
  return value.get<std::string>();
}

std::vector<std::string> texts_of(const Json& value, const std::string& place, const char* key) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array() || value.empty())
    fail(ErrorKind::file, place, "\"{}\" is {}; expected a list of strings", key,
         value.is_array() ? "an empty list" : spec::kind_of(value));
  std::vector<std::string> texts;
  for (const Json& one : value) texts.push_back(text_of(one, place, key));
  return texts;
}

int64_t choice_of(const Json& gold, const TaskExample& example, const std::string& place) {
  const int64_t n = std::ssize(example.choices);
  if (gold.is_string()) {
    const auto at =
        std::find(example.choices.begin(), example.choices.end(), gold.get<std::string>());
    if (at != example.choices.end()) return at - example.choices.begin();
  } else if (gold.is_number_integer() && gold >= 0 && gold < n) {
    return gold.get<int64_t>();
  }
  fail(ErrorKind::file, place,
       "gold = {}; expected the number of the right choice, 0 to {}, or its text", gold.dump(),
       n - 1);
}

/// The right choices: "gold" or "answer".
void read_gold(const Json& json, TaskExample& example, const std::string& place) {
  const Json* gold = first_of(json, {"gold", "answer"});
  if (gold == nullptr)
    fail(ErrorKind::file, place, "no \"gold\"; expected the number of the right choice, from 0");
  if (gold->is_array() && gold->empty())
    fail(ErrorKind::file, place, "\"gold\" is an empty list; expected a right choice");
  if (gold->is_array())
    for (const Json& one : *gold) example.gold.push_back(choice_of(one, example, place));
  else
    example.gold = {choice_of(*gold, example, place)};
}

/// "choices", or "contexts" with their "continuation".
void read_choices(const Json& json, TaskExample& example, const std::string& place) {
  const bool partial = json.contains("contexts");
  const char* key = partial ? "contexts" : "choices";
  std::vector<std::string> texts = texts_of(json[key], place, key);
  if (texts.size() < 2)
    fail(ErrorKind::file, place, "1 choice; expected at least 2 under \"{}\"", key);
  for (const std::string& text : texts)
    if (text.empty()) fail(ErrorKind::file, place, "an empty choice; expected text");
  example.choices = std::move(texts);
  read_gold(json, example, place);
  if (!partial) return;
  const Json* continuation = first_of(json, {"continuation"});
  if (continuation == nullptr)
    fail(ErrorKind::file, place, "no \"continuation\"; expected it with \"contexts\"");
  example.contexts = std::move(example.choices);
  example.choices.assign(example.contexts.size(), text_of(*continuation, place, "continuation"));
  if (example.choices.front().empty())
    fail(ErrorKind::file, place, "an empty \"continuation\"; expected text");
}

/// A few-shot example with its answer.
std::string solved(const TaskExample& example) {
  const auto gold = static_cast<size_t>(example.gold.empty() ? 0 : example.gold.front());
  return example.context + (example.contexts.empty() ? "" : example.contexts[gold]) +
         example.delimiter +
         (example.choices.empty() ? example.answers.front() : example.choices[gold]);
}

const char* kind_name(TaskKind kind) {
  switch (kind) {
    case TaskKind::multiple_choice:
      return "multiple choice";
    case TaskKind::continuation:
      return "a continuation";
    case TaskKind::retrieval:
      return "retrieval";
    case TaskKind::generation:
      break;
  }
  return "generation";
}

}  // namespace

std::pair<TaskExample, TaskKind> task_example(const Json& json, const std::string& place) {
  if (!json.is_object())
    fail(ErrorKind::file, place, "found {}; expected an object", spec::kind_of(json));
  TaskExample example;
  if (const Json* description = first_of(json, {"description"}))
    example.description = text_of(*description, place, "description");
  if (const Json* delimiter = first_of(json, {"delimiter"}))
    example.delimiter = text_of(*delimiter, place, "delimiter");
  if (json.contains("input") && json.contains("outputs")) {  // RULER's files
    example.context = text_of(json["input"], place, "input");
    if (const Json* prefix = first_of(json, {"answer_prefix"}))
      example.context += text_of(*prefix, place, "answer_prefix");
    example.answers = texts_of(json["outputs"], place, "outputs");
    return {std::move(example), TaskKind::retrieval};
  }
  const Json* context = first_of(json, {"context", "query", "prompt"});
  if (context != nullptr) example.context = text_of(*context, place, "context");
  if (json.contains("contexts")) {
    read_choices(json, example, place);
    return {std::move(example), TaskKind::multiple_choice};
  }
  if (context == nullptr)
    fail(ErrorKind::file, place, "no \"context\", \"query\" or \"prompt\"; expected one of them");
  if (json.contains("choices")) {
    read_choices(json, example, place);
    return {std::move(example), TaskKind::multiple_choice};
  }
  if (const Json* continuation = first_of(json, {"continuation"})) {
    example.choices = {text_of(*continuation, place, "continuation")};
    if (example.choices.front().empty())
      fail(ErrorKind::file, place, "an empty \"continuation\"; expected text");
    return {std::move(example), TaskKind::continuation};
  }
  if (const Json* contains = first_of(json, {"contains"})) {
    example.answers = texts_of(*contains, place, "contains");
    return {std::move(example), TaskKind::retrieval};
  }
  const Json* answers = first_of(json, {"answers", "answer"});
  if (answers == nullptr)
    fail(ErrorKind::file, place,
         "neither \"choices\" (multiple choice), \"continuation\" (log-likelihood), \"answers\" "
         "(generation) nor \"contains\" (retrieval); expected one of them");
  example.answers = texts_of(*answers, place, "answers");
  return {std::move(example), TaskKind::generation};
}

void add_example(TaskFile& file,
                 std::pair<TaskExample, TaskKind> example,
                 const std::string& place) {
  if (file.examples.empty()) file.kind = example.second;
  if (example.second != file.kind)
    fail(ErrorKind::file, place, "is {}, unlike the examples before; expected one kind",
         kind_name(example.second));
  file.examples.push_back(std::move(example.first));
}

TaskFile read_task_file(const std::filesystem::path& path, const CancelToken* cancel) {
  const std::string where = path == "-" ? "stdin" : path.string();
  const std::string text = read_text_input(path, cancel);
  TaskFile file;
  file.sha256 = sha256(text);
  const auto add = [&](const Json& json, const std::string& place) {
    add_example(file, task_example(json, place), place);
  };
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && text[begin] == '[') {
    const Json list = spec::parse_json(text, where);
    for (size_t i = 0; i < list.size(); ++i) add(list[i], fmt::format("{}[{}]", where, i));
  } else {
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string place = fmt::format("{}:{}", where, number);
      add(spec::parse_json(line, place), place);
    }
  }
  if (file.examples.empty())
    fail(ErrorKind::file, where, "no examples; expected JSON lines or a JSON array of objects");
  return file;
}

std::string prompt_of(const TaskFile& task, int64_t number, const FewShot& few_shot) {
  const TaskExample& asked = task.examples[static_cast<size_t>(number)];
  if (few_shot.examples == 0) return asked.description + asked.context;
  const TaskFile& source = few_shot.source != nullptr ? *few_shot.source : task;
  const bool same = few_shot.source == nullptr;
  const int64_t available = std::ssize(source.examples) - (same ? 1 : 0);
  if (source.kind != task.kind)
    fail(ErrorKind::usage, "eval",
         "few-shot examples and task differ in kind: {} and {}; expected one kind",
         kind_name(source.kind), kind_name(task.kind));
  if (few_shot.examples > available)
    fail(ErrorKind::usage, "eval", "{} few-shot examples; expected at most {}{}", few_shot.examples,
         available, same ? ", the other examples of the task" : "");
  const RandomKey key =
      RandomKey(few_shot.seed).fold("few-shot").fold(static_cast<uint64_t>(number));
  // the first steps of a Fisher-Yates shuffle
  std::vector<int64_t> left;
  for (int64_t i = 0; i < std::ssize(source.examples); ++i)
    if (!same || i != number) left.push_back(i);
  std::string prompt = asked.description;
  for (int64_t k = 0; k < few_shot.examples; ++k) {
    const uint64_t room = static_cast<uint64_t>(available - k);
    const auto at = static_cast<size_t>(k) +
                    static_cast<size_t>(uint64_t{key.bits(static_cast<uint64_t>(k))} * room >> 32);
    std::swap(left[static_cast<size_t>(k)], left[at]);
    prompt +=
        solved(source.examples[static_cast<size_t>(left[static_cast<size_t>(k)])]) + kBlankLine;
  }
  return prompt + asked.context;
}

}  // namespace tessera::infer
