#include "tessera/infer/evaluation/ruler_questions.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::infer {
namespace {

using spec::Json;

/// A member of an object in a file of questions. Throws Error(file).
const Json& question_member(const Json& object, const char* key, const std::string& where) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end())
    fail(ErrorKind::file, "eval", "{}: no \"{}\"; expected a file of SQuAD or HotpotQA", where,
         key);
  return *found;
}

const Json& question_list(const Json& object, const char* key, const std::string& where) {
  const Json& list = question_member(object, key, where);
  if (!list.is_array())
    fail(ErrorKind::file, "eval", "{}: \"{}\" is {}; expected a list", where, key,
         spec::kind_of(list));
  return list;
}

std::string question_text(const Json& value, const char* what, const std::string& where) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    fail(ErrorKind::file, "eval", "{}: {} is {}; expected a text", where, what,
         value.is_string() ? "empty" : spec::kind_of(value));
  return value.get<std::string>();
}

/// A question before its documents have numbers.
struct UnnumberedQuestion {
  std::string query;
  std::vector<std::string> answers, documents, of_article;
};

void read_article(const Json& article,
                  const std::string& path,
                  std::vector<UnnumberedQuestion>& out,
                  std::set<std::string>& documents) {
  std::vector<std::string> contexts;
  const Json& paragraphs = question_list(article, "paragraphs", path);
  for (const Json& paragraph : paragraphs) {
    contexts.push_back(
        question_text(question_member(paragraph, "context", path), "\"context\"", path));
    documents.insert(contexts.back());
  }
  for (size_t p = 0; p < contexts.size(); ++p)
    for (const Json& asked : question_list(paragraphs[p], "qas", path)) {
      if (!asked.is_object()) question_member(asked, "question", path);
      if (asked.value("is_impossible", Json(false)) == Json(true)) continue;
      const std::string where = fmt::format("{}: question {}", path, out.size() + 1);
      UnnumberedQuestion one;
      one.query = question_text(question_member(asked, "question", where), "\"question\"", where);
      for (const Json& answer : question_list(asked, "answers", where))
        one.answers.push_back(
            question_text(question_member(answer, "text", where), "the text of an answer", where));
      if (one.answers.empty()) continue;
      one.documents = {contexts[p]};
      for (const std::string& other : contexts)
        if (other != contexts[p]) one.of_article.push_back(other);
      out.push_back(std::move(one));
    }
}

/// Of HotpotQA, as its authors publish it, or as `datasets` exports it: {title: [], sentences: []}.
std::vector<std::string> hotpot_documents(const Json& context, const std::string& where) {
  std::vector<std::pair<Json, Json>> parts;
  if (context.is_object()) {
    const Json& titles = question_list(context, "title", where);
    const Json& sentences = question_list(context, "sentences", where);
    for (size_t i = 0; i < std::min(titles.size(), sentences.size()); ++i)
      parts.emplace_back(titles[i], sentences[i]);
  } else if (context.is_array()) {
    for (const Json& one : context)
      if (one.is_array() && one.size() == 2) parts.emplace_back(one[0], one[1]);
  }
  std::vector<std::string> out;
  for (const auto& [title, sentences] : parts) {
    std::string text = question_text(title, "a title", where) + "\n";
    if (!sentences.is_array())
      fail(ErrorKind::file, "eval", "{}: the sentences of a document are {}; expected a list",
           where, spec::kind_of(sentences));
    for (const Json& sentence : sentences)
      if (sentence.is_string()) text += sentence.get<std::string>();
    out.push_back(std::move(text));
  }
  if (out.empty())
    fail(ErrorKind::file, "eval",
         "{}: \"context\" has no document; expected a list of [title, [sentences]]", where);
  return out;
}

/// The places of all numbers below `n` in random order.
std::vector<size_t> random_order(size_t n, const RandomKey& key) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[uint64_t{key.bits(i)} * i >> 32]);
  return order;
}

/// Documents of a question in the order in which they are taken.
std::vector<size_t> documents_in_order(const RulerQuestions& data,
                                       size_t index,
                                       const RandomKey& key) {
  const RulerQuestions::Question& question = data.questions.at(index);
  std::vector<size_t> out = question.documents;
  std::vector<bool> taken(data.documents.size(), false);
  const auto take = [&](const std::vector<size_t>& list, const RandomKey& own) {
    for (const size_t i : random_order(list.size(), own))
      if (!taken[list[i]]) out.push_back(list[i]), taken[list[i]] = true;
  };
  for (const size_t i : out) taken[i] = true;
  take(question.of_article, key.fold("article"));
  std::vector<size_t> others;
  for (size_t i = 0; i < data.documents.size(); ++i)
    if (!taken[i]) others.push_back(i);
  take(others, key.fold("others"));
  return out;
}

RulerExample question_example(const RulerQuestions& data,
                              size_t index,
                              const std::vector<size_t>& order,
                              int64_t n,
                              const RandomKey& key) {
  std::vector<size_t> chosen;
  for (int64_t i = 0; i < n; ++i) chosen.push_back(order[static_cast<size_t>(i) % order.size()]);
  std::string context;
  int64_t number = 0;
  for (const size_t i : random_order(chosen.size(), key.fold("order")))
    context += fmt::format("{}Document {}:\n{}", number > 0 ? "\n\n" : "", number + 1,
                           data.documents[chosen[i]]),
        ++number;
  const RulerQuestions::Question& question = data.questions.at(index);
  return {question_prompt(context, question.query), question.answers};
}

}  // namespace

RulerQuestions read_ruler_questions(const std::string& path) {
  const Json file = spec::read_json_file(path);
  std::vector<UnnumberedQuestion> all;
  std::set<std::string> documents;
  if (file.is_array()) {
    for (const Json& one : file) {
      const std::string where = fmt::format("{}: question {}", path, all.size() + 1);
      UnnumberedQuestion question;
      question.query =
          question_text(question_member(one, "question", where), "\"question\"", where);
      question.answers = {
          question_text(question_member(one, "answer", where), "\"answer\"", where)};
      question.documents = hotpot_documents(question_member(one, "context", where), where);
      documents.insert(question.documents.begin(), question.documents.end());
      all.push_back(std::move(question));
    }
  } else {
    for (const Json& article : question_list(file, "data", path))
      read_article(article, path, all, documents);
  }
  if (all.empty())
    fail(ErrorKind::input, "eval", "{}: no question with an answer; expected some", path);
  RulerQuestions out;
  out.documents.assign(documents.begin(), documents.end());
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < out.documents.size(); ++i) numbers[out.documents[i]] = i;
  const auto numbered = [&](const std::vector<std::string>& texts) {
    std::vector<size_t> list;
    for (const std::string& text : texts) list.push_back(numbers.at(text));
    return list;
  };
  for (UnnumberedQuestion& one : all)
    out.questions.push_back({std::move(one.query), std::move(one.answers), numbered(one.documents),
                             numbered(one.of_article)});
  return out;
}

RulerExample make_ruler_question(const RulerQuestions& data,
                                 size_t index,
                                 int64_t n,
                                 const RandomKey& key) {
  return question_example(data, index, documents_in_order(data, index, key), n, key);
}

RulerExample make_ruler_question(const RulerQuestions& data,
                                 size_t index,
                                 const RulerTask& task,
                                 const text::Tokenizer& tokenizer,
                                 int64_t length,
                                 const RandomKey& key) {
  const std::vector<size_t> order = documents_in_order(data, index, key);
  const auto tokens = [&](int64_t n) {
    const RulerExample made = question_example(data, index, order, n, key);
    return std::ssize(tokenizer.encode(made.prompt, {.add_special = false})) + task.answer_tokens;
  };
  const auto own = std::ssize(data.questions.at(index).documents);
  if (const int64_t needed = tokens(own); needed > length)
    fail(ErrorKind::usage, "eval", "question {} of {} with {} tokens; expected at least {}",
         index + 1, task.name, length, needed);
  int64_t fits = own, over = own + 1;
  while (tokens(over) <= length) {
    fits = over;
    over = 2 * over + 8;
  }
  while (over - fits > 1) {
    const int64_t middle = fits + (over - fits) / 2;
    (tokens(middle) <= length ? fits : over) = middle;
  }
  return question_example(data, index, order, fits, key);
}

std::string question_prompt(const std::string& context, const std::string& query) {
  constexpr const char* kAsk =
      "Answer the question based on the given documents. Only give me the answer and do not output "
      "any other words.";
  return fmt::format(
      "{0}\n\nThe following are given documents.\n\n{1}\n\n{0}\n\nQuestion: {2} "
      "Answer:",
      kAsk, context, query);
}

}  // namespace tessera::infer
