#include "tessera/train/data/label_examples.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "tessera/base/rng.h"
#include "tessera/format/file_source.h"
#include "tessera/spec/names.h"
#include "tessera/text/utf8.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {
namespace {

/// Integers in decimal notation; nullopt for other text.
std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// Text of a file, shortened for a message.
std::string shown(std::string_view text) {
  return format::in_quotes(text);
}

/// Names and values that may be many, for a message.
std::string shown(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  std::vector<std::string> some;
  for (const std::string& name : names)
    if (some.size() < kMost) some.push_back(shown(name));
  return fmt::format("{}{}", fmt::join(some, ", "),
                     names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
}

std::vector<std::string> names_in(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) names.push_back(key);
  return names;
}

const Json* find(const Record& record, const std::string& key) {
  const auto found = record.values.find(key);
  return found == record.values.end() || found->is_null() ? nullptr : &*found;
}

/// A required value; `role` names its column key in recipes.
const Json& needed(const Record& record, const std::string& key, std::string_view role) {
  if (const Json* value = find(record, key)) return *value;
  if (record.values.contains(key))
    fail(ErrorKind::file, "data",
         "{}: \"{}\" is null; expected a value (leave examples without one out)", record.where,
         key);
  const std::vector<std::string> names = names_in(record.values);
  fail(ErrorKind::file, "data",
       "{}: no \"{}\"{}; found {}; expected it, or data.{}_key with the name of another",
       record.where, key, spec::did_you_mean(key, names), shown(names), role);
}

std::string text_in(const Record& record, const std::string& key, std::string_view role) {
  const Json& value = needed(record, key, role);
  if (!value.is_string())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a string", record.where, key,
         found_kind(value));
  auto text = value.get<std::string>();
  if (trimmed(text).empty())
    fail(ErrorKind::file, "data", "{}: \"{}\" is empty; expected a text", record.where, key);
  return text;
}

/// True for an empty text of a table.
bool is_empty(const Record& record, const std::string& key) {
  const Json* value = find(record, key);
  return value != nullptr && value->is_string() && trimmed(value->get<std::string>()).empty();
}

/// A class: a name or an integer.
std::string class_in(const Json& value, const Record& record, const std::string& key) {
  std::string name;
  if (value.is_string())
    name = std::string(trimmed(value.get<std::string>()));
  else if (value.is_number_integer())
    name = std::to_string(value.get<int64_t>());
  else if (value.is_boolean())
    name = value.get<bool>() ? "true" : "false";
  else
    fail(ErrorKind::file, "data",
         "{}: \"{}\" is {}; expected a class, a string or a whole number{}", record.where, key,
         found_kind(value), value.is_number() ? " (--task regression for numbers)" : "");
  if (name.empty())
    fail(ErrorKind::file, "data", "{}: \"{}\" is empty; expected a label", record.where, key);
  if (const auto number = whole_number(name); number && *number < 0)
    fail(ErrorKind::file, "data",
         "{}: \"{}\" is {}, which marks a missing label; expected labelled examples "
         "(test sets often have none), classes without a minus sign (0 and 1 for -1 and 1), or "
         "--task regression for numbers",
         record.where, key, name);
  return name;
}

std::vector<std::string> split_at(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  while (!trimmed(text).empty()) {
    const size_t end = separator.empty() ? text.npos : text.find(separator);
    if (const auto part = trimmed(text.substr(0, end)); !part.empty()) parts.emplace_back(part);
    if (end == text.npos) break;
    text.remove_prefix(end + separator.size());
  }
  return parts;
}

std::vector<std::string> classes_in(const Record& record, const LabelData& data) {
  const std::string& key = data.label_key;
  const Json& value = needed(record, key, "label");
  std::vector<std::string> out;
  if (value.is_array()) {
    for (const Json& one : value) out.push_back(class_in(one, record, key));
  } else if (record.is_table && value.is_string()) {
    out = split_at(value.get<std::string>(), data.label_separator);
  } else {
    out.push_back(class_in(value, record, key));
  }
  std::vector<std::string> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    fail(ErrorKind::file, "data", "{}: label {} is repeated", record.where, shown(*twice));
  return out;
}

double score_in(const Record& record, const LabelData& data) {
  const Json& value = needed(record, data.score_key, "score");
  double score = 0;
  if (value.is_number()) {
    score = value.get<double>();
  } else {
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    const std::string_view digits = trimmed(text);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), score);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
      fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a number", record.where,
           data.score_key, value.is_string() ? shown(text) : std::string(found_kind(value)));
  }
  if (!std::isfinite(score))
    fail(ErrorKind::file, "data", "{}: \"{}\" is not finite; expected a number", record.where,
         data.score_key);
  return score;
}

/// A list of strings, or in a table words separated by spaces.
std::vector<std::string> strings_in(const Record& record,
                                    const std::string& key,
                                    std::string_view role) {
  const Json& value = needed(record, key, role);
  if (value.is_string()) return split_at(value.get<std::string>(), " ");
  if (!value.is_array())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a list", record.where, key,
         found_kind(value));
  std::vector<std::string> out;
  for (const Json& one : value) {
    out.push_back(one.is_number_integer() ? std::to_string(one.get<int64_t>())
                  : one.is_string()       ? one.get<std::string>()
                                          : std::string());
    if (trimmed(out.back()).empty())
      fail(ErrorKind::file, "data", "{}: item {} of \"{}\" is {}; expected a word", record.where,
           out.size(), key, one.is_string() ? "empty" : found_kind(one));
  }
  return out;
}

/// The byte offset of a character; the text's size past the last one.
std::optional<size_t> byte_of(std::string_view text, int64_t character) {
  size_t at = 0;
  for (; character > 0 && at < text.size(); --character)
    at += std::max<size_t>(1, text::character_length(text, at));
  return character == 0 ? std::optional(at) : std::nullopt;
}

/// An answer at a character of the context, or at its first occurrence.
Answer answer_at(std::string text, const std::optional<int64_t>& start, const Question& question) {
  if (trimmed(text).empty())
    fail(ErrorKind::file, "data", "{}: an answer is empty; expected text, or no answer",
         question.where);
  const std::optional<size_t> begin =
      start ? (*start < 0 ? std::nullopt : byte_of(question.context, *start))
            : std::optional(question.context.find(text));
  if (!start && *begin == std::string::npos)
    fail(ErrorKind::file, "data", "{}: the answer {} is not in the context; expected a part of it",
         question.where, shown(text));
  if (!begin || question.context.compare(*begin, text.size(), text) != 0)
    fail(ErrorKind::file, "data",
         "{}: the answer {} is not at character {} of the context; expected the number "
         "of its first character, counted from 0",
         question.where, shown(text), start.value_or(0));
  return {std::move(text), *begin};
}

std::optional<int64_t> start_in(const Json& value, const Question& question) {
  if (value.is_null()) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string())
    if (const auto number = whole_number(trimmed(value.get<std::string>()))) return number;
  fail(ErrorKind::file, "data", "{}: answer_start is {}; expected a whole number", question.where,
       found_kind(value));
}

std::string string_of(const Json& value, const Question& question) {
  if (!value.is_string())
    fail(ErrorKind::file, "data", "{}: the text of an answer is {}; expected a string",
         question.where, found_kind(value));
  return value.get<std::string>();
}

/// Answers as in SQuAD, a list of {text, answer_start}; as in `datasets`, an object of two lists;
/// or a string, optionally with "answer_start".
std::vector<Answer> answers_in(const Json& value, const Record& record, const Question& question) {
  std::vector<Answer> out;
  if (value.is_string()) {
    if (trimmed(value.get<std::string>()).empty()) return out;
    const Json* start = find(record, "answer_start");
    out.push_back(answer_at(value.get<std::string>(),
                            start_in(start == nullptr ? Json() : *start, question), question));
  } else if (value.is_array()) {
    for (const Json& one : value) {
      if (one.is_string()) {
        out.push_back(answer_at(one.get<std::string>(), std::nullopt, question));
        continue;
      }
      if (!one.is_object())
        fail(ErrorKind::file, "data", "{}: an answer is {}; expected {{text, answer_start}}",
             question.where, found_kind(one));
      out.push_back(answer_at(string_of(one.value("text", Json()), question),
                              start_in(one.value("answer_start", Json()), question), question));
    }
  } else if (value.is_object()) {
    const Json texts = value.value("text", Json()), starts = value.value("answer_start", Json());
    if (!texts.is_array() || !starts.is_array() || texts.size() != starts.size())
      fail(ErrorKind::file, "data",
           "{}: answers is an object; expected two lists of one length, text and answer_start",
           question.where);
    for (size_t i = 0; i < texts.size(); ++i)
      out.push_back(
          answer_at(string_of(texts[i], question), start_in(starts[i], question), question));
  } else {
    fail(ErrorKind::file, "data", "{}: answers is {}; expected a list, or a string", question.where,
         found_kind(value));
  }
  return out;
}

/// Visits all examples of a split, with labels from a separate file if there is one.
template <class Visit>
void for_split(const LabelData& data, LabelSplit split, const CancelToken* cancel, Visit visit) {
  const bool train = split == LabelSplit::train;
  const auto& files = train ? data.train : data.valid;
  const auto& label_files = train ? data.train_labels : data.valid_labels;
  for (size_t i = 0; i < files.size(); ++i) {
    std::vector<std::string> labels;
    if (!label_files.empty()) labels = read_label_file(label_files.at(i));
    size_t number = 0;
    for_each_record(data, files[i], [&](Record&& record) {
      if (cancel != nullptr) cancel->check("data");
      visit(record, number < labels.size() ? &labels[number] : nullptr);
      ++number;
    });
    if (number == 0)
      fail(ErrorKind::input, "data", "{}: no example; expected at least one", files[i]);
    if (!label_files.empty() && labels.size() != number)
      fail(ErrorKind::input, "data", "{}: {} labels; expected {}, one for every example of {}",
           label_files[i], labels.size(), number, files[i]);
  }
}

}  // namespace

std::vector<LabelledText> read_texts(const LabelData& data,
                                     LabelSplit split,
                                     LabelOf kind,
                                     const CancelToken* cancel) {
  std::vector<LabelledText> out;
  const bool beside = !(split == LabelSplit::train ? data.train_labels : data.valid_labels).empty();
  for_split(data, split, cancel, [&](Record& record, const std::string* label) {
    // too few labels are reported after counting
    if (beside) {
      record.values[kind == LabelOf::score ? data.score_key : data.label_key] =
          label == nullptr ? "0" : *label;
      record.is_table = true;
    }
    if (data.skip_incomplete &&
        (is_empty(record, data.text_key) || is_empty(record, data.text_b_key)))
      return;
    LabelledText one;
    one.where = record.where;
    one.group = std::move(record.group);
    one.candidate = std::move(record.candidate);
    one.file = std::move(record.file);
    if (!data.has_features) {
      one.text = text_in(record, data.text_key, "text");
      if (find(record, data.text_b_key) != nullptr)
        one.text_b = text_in(record, data.text_b_key, "text_b");
    }
    if (kind == LabelOf::score) {
      one.score = score_in(record, data);
    } else if (kind == LabelOf::multi_label) {
      one.labels = classes_in(record, data);
    } else {
      const Json& value = needed(record, data.label_key, "label");
      if (value.is_array())
        fail(
            ErrorKind::file, "data",
            "{}: \"{}\" is a list; expected one class (objective.multi_label = true takes several)",
            record.where, data.label_key);
      one.labels = {class_in(value, record, data.label_key)};
    }
    out.push_back(std::move(one));
  });
  return out;
}

std::vector<LabelledWords> read_words(const LabelData& data,
                                      LabelSplit split,
                                      const CancelToken* cancel) {
  std::vector<LabelledWords> out;
  for_split(data, split, cancel, [&](Record& record, const std::string* labels) {
    if (labels != nullptr) record.values[data.labels_key] = *labels;
    LabelledWords one{record.where, strings_in(record, data.words_key, "words"),
                      strings_in(record, data.labels_key, "labels")};
    if (one.words.empty())
      fail(ErrorKind::file, "data", "{}: \"{}\" is empty; expected words", one.where,
           data.words_key);
    if (one.words.size() != one.labels.size())
      fail(ErrorKind::file, "data", "{}: {} labels; expected {}, one for every word", one.where,
           one.labels.size(), one.words.size());
    out.push_back(std::move(one));
  });
  return out;
}

std::vector<Question> read_questions(const LabelData& data,
                                     LabelSplit split,
                                     const CancelToken* cancel) {
  std::vector<Question> out;
  for_split(data, split, cancel, [&](Record& record, const std::string*) {
    Question one;
    one.where = record.where;
    if (const Json* id = find(record, "id"))
      one.id = id->is_string() ? id->get<std::string>() : id->dump();
    one.context = text_in(record, data.context_key, "context");
    one.question = text_in(record, data.question_key, "question");
    one.answers = answers_in(needed(record, data.answers_key, "answers"), record, one);
    out.push_back(std::move(one));
  });
  return out;
}

std::vector<bool> held_out(int64_t n, double valid_fraction) {
  std::vector<bool> out(static_cast<size_t>(n), false);
  if (valid_fraction <= 0) return out;
  if (n < 2)
    fail(ErrorKind::input, "data",
         "{} example; expected at least 2 to hold some of them out (data.valid_fraction)", n);
  const auto most = static_cast<int64_t>(std::llround(valid_fraction * static_cast<double>(n)));
  const RandomKey key = RandomKey(0).fold("held_out");
  for (int64_t i = 0; i < std::clamp<int64_t>(most, 1, n - 1); ++i)
    out[static_cast<size_t>(permuted(i, n, key))] = true;
  return out;
}

ClassNames::ClassNames(std::vector<std::string> names) : names_(std::move(names)) {
  if (names_.empty()) fail(ErrorKind::spec, "labels", "no class; expected their names");
  std::set<std::string> seen;
  for (const std::string& name : names_) {
    if (!seen.insert(name).second)
      fail(ErrorKind::spec, "labels", "class {} is repeated", shown(name));
    has_numbers_ = has_numbers_ || whole_number(name).has_value();
  }
}

ClassNames ClassNames::of(const std::vector<std::string>& labels) {
  const std::set<std::string> unique(labels.begin(), labels.end());
  std::vector<std::string> names(unique.begin(), unique.end());
  if (std::all_of(names.begin(), names.end(),
                  [](const std::string& name) { return whole_number(name).has_value(); }))
    std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
      return std::pair(*whole_number(a), a) < std::pair(*whole_number(b), b);
    });
  return ClassNames(std::move(names));
}

int64_t ClassNames::number(const std::string& label, const std::string& where) const {
  const auto found = std::find(names_.begin(), names_.end(), label);
  if (found != names_.end()) return found - names_.begin();
  if (!has_numbers_)
    if (const auto number = whole_number(label); number && *number >= 0 && *number < size())
      return *number;
  fail(ErrorKind::input, "data", "{}: class {} is unknown{}; expected one of {}", where,
       shown(label), label.size() < 3 ? "" : spec::did_you_mean(label, names_), shown(names_));
}

}  // namespace tessera::train
