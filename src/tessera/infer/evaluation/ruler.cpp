#include "tessera/infer/evaluation/ruler.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>
#include <set>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::infer {

extern const char* const kRulerWords;

namespace {

using Kind = RulerTask::Kind;
using Haystack = RulerTask::Haystack;
using Item = RulerTask::Item;

constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr int64_t kHops = 4;          // of vt
constexpr int64_t kCommonWords = 10;  // of cwe
constexpr int64_t kShort = 4096;      // fewer tokens have other frequencies of cwe

const std::vector<std::string>& dictionary() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> all(1);
    for (const char* c = kRulerWords; *c != '\0'; ++c) {
      if (*c != '\n')
        all.back() += *c;
      else if (!all.back().empty())
        all.emplace_back();
    }
    if (all.back().empty()) all.pop_back();
    return all;
  }();
  return words;
}

/// Random numbers in the order of their draws.
class RulerDraws {
 public:
  explicit RulerDraws(const RandomKey& key) : key_(key) {}

  int64_t below(int64_t n) {
    return static_cast<int64_t>(uint64_t{key_.bits(next_++)} * static_cast<uint64_t>(n) >> 32);
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (int64_t i = std::ssize(items) - 1; i > 0; --i)
      std::swap(items[static_cast<size_t>(i)], items[static_cast<size_t>(below(i + 1))]);
  }
  double share() { return static_cast<double>(key_.bits(next_++)) * 0x1p-32; }
  std::string letters(int64_t n, char first) {
    std::string out;
    for (int64_t i = 0; i < n; ++i) out += static_cast<char>(first + below(26));
    return out;
  }
  const std::string& word() {
    return dictionary()[static_cast<size_t>(below(std::ssize(dictionary())))];
  }
  std::string item(Item of) {
    if (of == Item::words) {
      const std::string& first = word();
      return first + "-" + word();
    }
    if (of == Item::numbers) return std::to_string(1'000'000 + below(9'000'000));
    // version 4, variant 1 (RFC 9562)
    std::string digits;
    for (int i = 0; i < 32; ++i)
      digits += "0123456789abcdef"[i == 12 ? 4 : i == 16 ? 8 + below(4) : below(16)];
    for (const size_t at : {20, 16, 12, 8}) digits.insert(at, "-");
    return digits;
  }
  /// One that is not among `taken`, to which it is added.
  std::string distinct(Item of, std::set<std::string>& taken) {
    for (;;)
      if (std::string made = item(of); taken.insert(made).second) return made;
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

const char* name_of_values(Item item) {
  return item == Item::words ? "words" : item == Item::numbers ? "numbers" : "uuids";
}

std::string needle(const RulerTask& task, const std::string& key, const std::string& value) {
  return fmt::format("One of the special magic {} for {} is: {}.", name_of_values(task.values), key,
                     value);
}

/// A sentence put into a haystack after this share of it.
struct Inserted {
  double depth = 0;
  std::string text;
};

/// The haystack with the sentences at their depths; those of one place keep their order.
std::string with_sentences(const std::vector<std::string>& haystack,
                           std::vector<Inserted> inserted,
                           const char* separator) {
  std::stable_sort(inserted.begin(), inserted.end(),
                   [](const Inserted& a, const Inserted& b) { return a.depth < b.depth; });
  std::string out;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : separator) + text; };
  size_t next = 0;
  for (size_t i = 0; i <= haystack.size(); ++i) {
    while (next < inserted.size() &&
           std::llround(inserted[next].depth * static_cast<double>(haystack.size())) ==
               static_cast<int64_t>(i))
      add(inserted[next++].text);
    if (i < haystack.size()) add(haystack[i]);
  }
  return out;
}

RulerExample needles(const RulerTask& task,
                     int64_t units,
                     std::span<const double> depths,
                     const std::vector<std::string>& essay,
                     RulerDraws draws) {
  require(std::ssize(depths) == task.n_answers(), "ruler", "{} depths of {} answers", depths.size(),
          task.n_answers());
  const int64_t n_keys = std::max(task.n_keys, task.n_queries);
  std::set<std::string> taken;
  std::vector<std::string> keys;
  for (int64_t k = 0; k < n_keys; ++k) keys.push_back(draws.distinct(task.keys, taken));
  draws.shuffle(keys);
  // the first n_queries are asked for
  RulerExample out;
  std::vector<Inserted> inserted;
  for (int64_t k = 0; k < n_keys; ++k)
    for (int64_t v = 0; v < task.n_values; ++v) {
      const std::string value = draws.distinct(task.values, taken);
      const bool asked = k < task.n_queries;
      const double depth = asked ? depths[out.answers.size()] : draws.share();
      inserted.push_back({depth, needle(task, keys[static_cast<size_t>(k)], value)});
      if (asked) out.answers.push_back(value);
    }
  std::vector<std::string> haystack;
  const bool is_essay = task.haystack == Haystack::essay && !essay.empty();
  for (int64_t i = 0; i < units; ++i) {
    if (is_essay)
      haystack.push_back(essay[static_cast<size_t>(i) % essay.size()]);
    else if (task.haystack == Haystack::needles)
      haystack.push_back(needle(task, draws.distinct(task.keys, taken), draws.item(task.values)));
    else
      haystack.emplace_back(kNoise);
  }
  keys.resize(static_cast<size_t>(task.n_queries));
  out.prompt = needle_prompt(
      task, with_sentences(haystack, std::move(inserted), is_essay ? " " : "\n"), keys);
  return out;
}

/// A chain of variables in filler, with `letters` in each name.
RulerExample variables(int64_t units, int64_t letters, RulerDraws& draws) {
  RulerExample out;
  std::set<std::string> taken;
  while (std::ssize(out.answers) <= kHops)
    if (std::string name = draws.letters(letters, 'A'); taken.insert(name).second)
      out.answers.push_back(std::move(name));
  const std::string value = std::to_string(10'000 + draws.below(89'999));
  std::vector<double> depths;
  for (int64_t i = 0; i <= kHops; ++i) depths.push_back(draws.share());
  std::sort(depths.begin(), depths.end());
  std::vector<Inserted> inserted;
  for (size_t i = 0; i < depths.size(); ++i)
    inserted.push_back(
        {depths[i], i == 0 ? fmt::format("VAR {} = {}", out.answers[0], value)
                           : fmt::format("VAR {} = VAR {} ", out.answers[i], out.answers[i - 1])});
  out.prompt =
      variables_prompt(with_sentences(std::vector<std::string>(static_cast<size_t>(units), kNoise),
                                      std::move(inserted), "\n"),
                       value, kHops + 1);
  return out;
}

RulerExample variable_tracking(int64_t units, RulerDraws draws) {
  constexpr int64_t kExampleLines = 5, kExampleLetters = 3, kLetters = 5;
  const RulerExample solved = variables(kExampleLines, kExampleLetters, draws);
  RulerExample out = variables(units, kLetters, draws);
  out.prompt = fmt::format("{} {}\n{}", solved.prompt, fmt::join(solved.answers, " "), out.prompt);
  return out;
}

/// "1. apple 2. bank".
std::string numbered_words(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    out += fmt::format("{}{}. {}", i > 0 ? " " : "", i + 1, words[i]);
  return out;
}

/// `n` different words; those beyond the dictionary are pairs of words.
std::vector<std::string> different_words(int64_t n, RulerDraws& draws) {
  std::vector<std::string> words = dictionary();
  draws.shuffle(words);
  std::set<std::string> taken;
  for (int64_t more = n - std::ssize(words); more > 0; --more)
    words.push_back(draws.distinct(Item::words, taken));
  words.resize(static_cast<size_t>(n));
  return words;
}

/// A list of `n` different words, of which the answers are there `common` times, others `rare`.
RulerExample word_list(int64_t n, int64_t common, int64_t rare, RulerDraws& draws) {
  RulerExample out;
  const std::vector<std::string> words = different_words(n, draws);
  std::vector<std::string> list;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_common = static_cast<int64_t>(i) < kCommonWords;
    if (is_common) out.answers.push_back(words[i]);
    list.insert(list.end(), static_cast<size_t>(is_common ? common : rare), words[i]);
  }
  draws.shuffle(list);
  out.prompt = common_words_prompt(numbered_words(list));
  return out;
}

RulerExample common_words(int64_t units, int64_t length, RulerDraws draws) {
  const bool is_short = length < kShort;
  const RulerExample solved = is_short ? word_list(20, 3, 1, draws) : word_list(40, 10, 3, draws);
  RulerExample out = is_short ? word_list(units, 6, 1, draws) : word_list(units, 30, 3, draws);
  out.prompt = solved.prompt + " " + numbered_words(solved.answers) + "\n" + out.prompt;
  return out;
}

RulerExample frequent_words(const RulerTask& task,
                            int64_t units,
                            int64_t length,
                            RulerDraws draws) {
  constexpr int64_t kLetters = 6;
  const int64_t n = std::max<int64_t>(5, (length - task.answer_tokens) / 50);
  std::vector<std::string> vocabulary;
  std::set<std::string> taken;
  while (std::ssize(vocabulary) < n)
    if (std::string word = draws.letters(kLetters, 'a'); taken.insert(word).second)
      vocabulary.push_back(std::move(word));
  vocabulary.front() = "...";  // the most frequent one is noise
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;
  std::vector<std::string> list;
  for (size_t k = 0; k < vocabulary.size(); ++k) {
    const double rank = static_cast<double>(k + 1);
    list.insert(list.end(),
                static_cast<size_t>(static_cast<double>(units) / (rank * rank) / kZeta2),
                vocabulary[k]);
  }
  draws.shuffle(list);
  return {frequent_words_prompt(fmt::format("{}", fmt::join(list, " "))),
          {vocabulary.begin() + 1, vocabulary.begin() + 4}};
}

/// The smallest haystack: words of which the answers are the most frequent ones.
int64_t least_units(const RulerTask& task) {
  if (task.kind == Kind::common_words) return kCommonWords + 1;
  // below, the fourth and the fifth word may be equally frequent
  return task.kind == Kind::frequent_words ? 64 : 0;
}

std::vector<RulerTask> all_ruler_tasks() {
  constexpr int64_t kNeedleTokens = 128, kVariableTokens = 30, kWordTokens = 120, kCodedTokens = 50;
  const auto niah = [](const char* name, Haystack haystack, Item keys, Item values, int64_t n_keys,
                       int64_t n_values, int64_t n_queries) {
    return RulerTask{.name = name,
                     .kind = Kind::needles,
                     .answer_tokens = kNeedleTokens,
                     .haystack = haystack,
                     .keys = keys,
                     .values = values,
                     .n_keys = n_keys,
                     .n_values = n_values,
                     .n_queries = n_queries};
  };
  return {niah("niah_single_1", Haystack::noise, Item::words, Item::numbers, 1, 1, 1),
          niah("niah_single_2", Haystack::essay, Item::words, Item::numbers, 1, 1, 1),
          niah("niah_single_3", Haystack::essay, Item::words, Item::uuids, 1, 1, 1),
          niah("niah_multikey_1", Haystack::essay, Item::words, Item::numbers, 4, 1, 1),
          niah("niah_multikey_2", Haystack::needles, Item::words, Item::numbers, 1, 1, 1),
          niah("niah_multikey_3", Haystack::needles, Item::uuids, Item::uuids, 1, 1, 1),
          niah("niah_multivalue", Haystack::essay, Item::words, Item::numbers, 1, 4, 1),
          niah("niah_multiquery", Haystack::essay, Item::words, Item::numbers, 1, 1, 4),
          {.name = "vt", .kind = Kind::variables, .answer_tokens = kVariableTokens},
          {.name = "cwe", .kind = Kind::common_words, .answer_tokens = kWordTokens},
          {.name = "fwe", .kind = Kind::frequent_words, .answer_tokens = kCodedTokens}};
}

}  // namespace

const std::vector<RulerTask>& ruler_tasks() {
  static const std::vector<RulerTask> tasks = all_ruler_tasks();
  return tasks;
}

const std::vector<RulerTask>& ruler_question_tasks() {
  constexpr int64_t kQuestionTokens = 32;
  static const std::vector<RulerTask> tasks = {
      {.name = "qa_1", .kind = Kind::questions, .answer_tokens = kQuestionTokens},
      {.name = "qa_2", .kind = Kind::questions, .answer_tokens = kQuestionTokens}};
  return tasks;
}

const RulerTask* find_ruler_task(const std::string& name) {
  for (const auto* tasks : {&ruler_tasks(), &ruler_question_tasks()})
    for (const RulerTask& task : *tasks)
      if (task.name == name) return &task;
  return nullptr;
}

std::vector<std::string> sentences_of(const std::string& text) {
  std::vector<std::string> sentences;
  std::string sentence;
  const auto end = [&] {
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
    sentence.clear();
  };
  // white space is one space, as in RULER
  bool space = false;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      space = true;
      continue;
    }
    if (space && !sentence.empty()) {
      if (std::string_view(".!?").find(sentence.back()) != std::string_view::npos)
        end();
      else
        sentence += ' ';
    }
    space = false;
    sentence += c;
  }
  end();
  if (sentences.empty())
    fail(ErrorKind::input, "eval", "--text has no sentence; expected a text for the haystack");
  return sentences;
}

std::string needle_prompt(const RulerTask& task,
                          const std::string& context,
                          const std::vector<std::string>& queries) {
  const std::string values = name_of_values(task.values);
  std::string query = queries.front();
  if (queries.size() > 1)
    query = fmt::format("{}, and {}", fmt::join(queries.begin(), queries.end() - 1, ", "),
                        queries.back());
  if (task.n_answers() == 1) {
    const std::string value = values.substr(0, values.size() - 1);
    return fmt::format(
        "A special magic {0} is hidden within the following text. Make sure to memorize it. I will "
        "quiz you about the {0} afterwards.\n{1}\nWhat is the special magic {0} for {2} mentioned "
        "in the provided text? The special magic {0} for {2} mentioned in the provided text is",
        value, context, query);
  }
  return fmt::format(
      "Some special magic {0} are hidden within the following text. Make sure to memorize it. I "
      "will quiz you about the {0} afterwards.\n{1}\nWhat are all the special magic {0} for {2} "
      "mentioned in the provided text? The special magic {0} for {2} mentioned in the provided "
      "text "
      "are",
      values, context, query);
}

std::string variables_prompt(const std::string& context, const std::string& value, int64_t n) {
  return fmt::format(
      "Memorize and track the chain(s) of variable assignment hidden in the following "
      "text.\n\n{0}\nQuestion: Find all variables that are assigned the value {1} in the text "
      "above. Answer: According to the chain(s) of variable assignment in the text above, {2} "
      "variables are assigned the value {1}, they are:",
      context, value, n);
}

std::string common_words_prompt(const std::string& context) {
  return fmt::format(
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n{}\nQuestion: What are the 10 most common words "
      "in the above list? Answer: The top 10 words that appear most often in the list are:",
      context);
}

std::string frequent_words_prompt(const std::string& context) {
  return fmt::format(
      "Read the following coded text and track the frequency of each coded word. Find the three "
      "most frequently appeared coded words. {}\nQuestion: Do not provide any explanation. Please "
      "ignore the dots '....'. What are the three most frequently appeared words in the above "
      "coded "
      "text? Answer: According to the coded text above, the three most frequently appeared words "
      "are:",
      context);
}

RulerExample make_ruler(const RulerTask& task,
                        int64_t units,
                        int64_t length,
                        std::span<const double> depths,
                        const std::vector<std::string>& essay,
                        const RandomKey& key) {
  const RulerDraws draws(key);
  switch (task.kind) {
    case Kind::needles:
      return needles(task, units, depths, essay, draws);
    case Kind::variables:
      return variable_tracking(units, draws);
    case Kind::common_words:
      return common_words(units, length, draws);
    case Kind::frequent_words:
      break;
    case Kind::questions:
      require(false, "ruler", "{} has questions of a file", task.name);
  }
  return frequent_words(task, units, length, draws);
}

RulerExample make_ruler(const RulerTask& task,
                        const text::Tokenizer& tokenizer,
                        int64_t length,
                        std::span<const double> depths,
                        const std::vector<std::string>& essay,
                        const RandomKey& key) {
  const auto tokens = [&](int64_t units) {
    const RulerExample made = make_ruler(task, units, length, depths, essay, key);
    return std::ssize(tokenizer.encode(made.prompt, {.add_special = false})) + task.answer_tokens;
  };
  const int64_t least = least_units(task), needed = tokens(least);
  if (needed > length)
    fail(ErrorKind::usage, "eval", "examples of {} with {} tokens; expected at least {}", task.name,
         length, needed);
  // a unit has at least one token: double, then bisect
  int64_t fits = least, over = least + 1;
  while (tokens(over) <= length) {
    fits = over;
    over = 2 * over + 8;
  }
  while (over - fits > 1) {
    const int64_t middle = fits + (over - fits) / 2;
    (tokens(middle) <= length ? fits : over) = middle;
  }
  return make_ruler(task, fits, length, depths, essay, key);
}

}  // namespace tessera::infer
