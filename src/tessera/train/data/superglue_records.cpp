#include "tessera/train/data/superglue_records.h"

#include <algorithm>
#include <cctype>

#include "tessera/text/utf8.h"
#include "tessera/train/data/data_file.h"

namespace tessera::train {
namespace {

/// A member of an object that is part of a record. Throws Error(file).
const Json& part(const Json& object, const char* key, const std::string& where) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || found->is_null())
    fail(ErrorKind::file, "data", "{}: no \"{}\"; expected a record of this SuperGLUE task", where,
         key);
  return *found;
}

const Json& parts(const Json& object, const char* key, const std::string& where) {
  const Json& list = part(object, key, where);
  if (!list.is_array())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a list", where, key,
         found_kind(list));
  return list;
}

std::string text_part(const Json& object, const char* key, const std::string& where) {
  const Json& value = part(object, key, where);
  if (!value.is_string())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a string", where, key,
         found_kind(value));
  return value.get<std::string>();
}

int64_t number_part(const Json& object, const char* key, const std::string& where) {
  const Json& value = part(object, key, where);
  if (!value.is_number_integer())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a whole number", where, key,
         found_kind(value));
  return value.get<int64_t>();
}

/// A label: a boolean, or 0 or 1. Labels of -1 stand for a missing one.
bool is_true(const Json& object, const std::string& where) {
  const Json& value = part(object, "label", where);
  if (value.is_boolean()) return value.get<bool>();
  if (value == 0 || value == 1) return value == 1;
  fail(ErrorKind::file, "data",
       "{}: \"label\" is {}; expected true or false, or 1 or 0 (test sets often have none)", where,
       value.is_number() ? value.dump() : std::string(found_kind(value)));
}

/// Pairs of texts made of one record.
class Pairs {
 public:
  Pairs(const Record& record, const LabelData& data, const std::function<void(Record&&)>& visit)
      : record_(record), data_(data), visit_(visit) {}

  void add(std::string text,
           std::string text_b,
           bool label,
           const std::string& group = "",
           std::string candidate = "") const {
    Record pair{record_.where, Json::object(), /*is_table=*/false};
    pair.values[data_.text_key] = std::move(text);
    if (!text_b.empty()) pair.values[data_.text_b_key] = std::move(text_b);
    pair.values[data_.label_key] = label;
    pair.group = group.empty() ? record_.where : group;
    pair.candidate = std::move(candidate);
    visit_(std::move(pair));
  }

 private:
  const Record& record_;
  const LabelData& data_;
  const std::function<void(Record&&)>& visit_;
};

void copa(const Record& record, const Pairs& pairs) {
  const Json& values = record.values;
  const std::string asked = text_part(values, "question", record.where);
  if (asked != "cause" && asked != "effect")
    fail(ErrorKind::file, "data", "{}: \"question\" is {}; expected \"cause\" or \"effect\"",
         record.where, Json(asked).dump());
  const std::string text = text_part(values, "premise", record.where) + " " +
                           (asked == "cause" ? "What was the cause?" : "What was the effect?");
  const bool second = is_true(values, record.where);
  pairs.add(text, text_part(values, "choice1", record.where), !second);
  pairs.add(text, text_part(values, "choice2", record.where), second);
}

void multirc(const Record& record, const Pairs& pairs) {
  const Json& values = record.values;
  const auto add = [&](const std::string& paragraph, const std::string& question,
                       const std::string& answer, bool label, const std::string& group) {
    pairs.add(paragraph, question + " " + answer, label, group, answer);
  };
  if (!values.contains("passage")) {  // of `datasets`: a record is an answer
    const Json& index = part(values, "idx", record.where);
    add(text_part(values, "paragraph", record.where), text_part(values, "question", record.where),
        text_part(values, "answer", record.where), is_true(values, record.where),
        fmt::format("paragraph {} question {}", number_part(index, "paragraph", record.where),
                    number_part(index, "question", record.where)));
    return;
  }
  const Json& passage = values["passage"];
  const std::string paragraph = text_part(passage, "text", record.where);
  int64_t number = 0;
  for (const Json& asked : parts(passage, "questions", record.where)) {
    const std::string group = fmt::format("{} question {}", record.where, ++number);
    for (const Json& answer : parts(asked, "answers", record.where))
      add(paragraph, text_part(asked, "question", record.where),
          text_part(answer, "text", record.where), is_true(answer, record.where), group);
  }
}

/// The characters from `begin` to `end`, both included, of a text.
std::string characters(std::string_view text,
                       int64_t begin,
                       int64_t end,
                       const std::string& where) {
  std::string out;
  int64_t at = 0;
  text::for_each_character(text, [&](char32_t, size_t from, size_t to) {
    if (at >= begin && at <= end) out += text.substr(from, to - from);
    ++at;
  });
  if (begin < 0 || end < begin || end >= at)
    fail(ErrorKind::file, "data",
         "{}: an entity of characters {} to {}; expected a part of the passage, which has {}",
         where, begin, end, at);
  return out;
}

void add_once(std::vector<std::string>& to, std::string text) {
  if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(std::move(text));
}

void record_pairs(const Record& record, const Pairs& pairs) {
  const Json& values = record.values;
  const Json& passage = part(values, "passage", record.where);
  const auto add = [&](std::string text, const std::string& query,
                       const std::vector<std::string>& entities,
                       const std::vector<std::string>& answers, const std::string& group) {
    constexpr std::string_view kHighlight = "\n@highlight\n", kPlaceholder = "@placeholder";
    for (size_t at = 0; (at = text.find(kHighlight, at)) != std::string::npos;)
      text.replace(at, kHighlight.size(), " ");
    const size_t blank = query.find(kPlaceholder);
    if (blank == std::string::npos)
      fail(ErrorKind::file, "data", "{}: a query without {}; expected it", record.where,
           kPlaceholder);
    for (const std::string& entity : entities)
      pairs.add(text, std::string(query).replace(blank, kPlaceholder.size(), entity),
                std::find(answers.begin(), answers.end(), entity) != answers.end(), group, entity);
  };
  std::vector<std::string> entities;
  if (passage.is_string()) {  // of `datasets`
    std::vector<std::string> answers;
    for (const Json& one : parts(values, "entities", record.where))
      if (one.is_string()) add_once(entities, one.get<std::string>());
    for (const Json& one : parts(values, "answers", record.where))
      if (one.is_string()) add_once(answers, one.get<std::string>());
    add(passage.get<std::string>(), text_part(values, "query", record.where), entities, answers,
        record.where);
    return;
  }
  const std::string text = text_part(passage, "text", record.where);
  for (const Json& one : parts(passage, "entities", record.where))
    add_once(entities, characters(text, number_part(one, "start", record.where),
                                  number_part(one, "end", record.where), record.where));
  int64_t number = 0;
  for (const Json& asked : parts(values, "qas", record.where)) {
    std::vector<std::string> answers;
    for (const Json& one : parts(asked, "answers", record.where))
      add_once(answers, text_part(one, "text", record.where));
    add(text, text_part(asked, "query", record.where), entities, answers,
        fmt::format("{} query {}", record.where, ++number));
  }
}

void wic(const Record& record, const Pairs& pairs) {
  const auto text = [&](const char* key) { return text_part(record.values, key, record.where); };
  pairs.add(text("word") + ": " + text("sentence1"), text("sentence2"),
            is_true(record.values, record.where));
}

/// The text with marks around the span after `words` words; as it is if the span is not there.
std::string marked(const std::string& text, const std::string& span, int64_t words, char mark) {
  size_t at = 0;
  const auto blank = [&](size_t i) {
    return std::isspace(static_cast<unsigned char>(text[i])) != 0;
  };
  for (; words > 0; --words) {
    const size_t begin = at;
    while (at < text.size() && !blank(at)) ++at;
    if (at == begin || at == text.size()) return text;
    ++at;
  }
  if (text.compare(at, span.size(), span) != 0) return text;
  return fmt::format("{}{} {} {}{}", text.substr(0, at), mark, span, mark,
                     text.substr(at + span.size()));
}

void wsc(const Record& record, const Pairs& pairs) {
  const Json& values = record.values;
  const Json& spans = values.contains("target") ? values["target"] : values;
  const int64_t first = number_part(spans, "span1_index", record.where),
                second = number_part(spans, "span2_index", record.where);
  const std::string text = marked(text_part(values, "text", record.where),
                                  text_part(spans, "span1_text", record.where), first, '*');
  // the marks are two words
  pairs.add(marked(text, text_part(spans, "span2_text", record.where),
                   second + (first < second ? 2 : 0), '#'),
            "", is_true(values, record.where));
}

}  // namespace

void superglue_records(RecordLayout layout,
                       const Record& record,
                       const LabelData& data,
                       const std::function<void(Record&&)>& visit) {
  if (!record.values.is_object())
    fail(ErrorKind::file, "data", "{}: {}; expected an object", record.where,
         found_kind(record.values));
  const Pairs pairs(record, data, visit);
  switch (layout) {
    case RecordLayout::copa:
      return copa(record, pairs);
    case RecordLayout::multirc:
      return multirc(record, pairs);
    case RecordLayout::record:
      return record_pairs(record, pairs);
    case RecordLayout::wic:
      return wic(record, pairs);
    case RecordLayout::wsc:
      return wsc(record, pairs);
  }
}

}  // namespace tessera::train
