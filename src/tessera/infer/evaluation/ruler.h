// RULER: retrieval, tracing and aggregation in long prompts (Hsieh et al. 2024, arXiv:2404.06654),
// with the templates, numbers of needles and frequencies of its configurations. Torch-free.
//
//   niah_single_1 .. 3    one needle: a number or a UUID for a key
//   niah_multikey_1 .. 3  needles of other keys too: 3 of them, or the whole haystack
//   niah_multivalue       4 values of one key
//   niah_multiquery       4 keys, each with a value
//   vt                    variable tracking: 5 variables that are assigned one value in 4 hops
//   cwe                   the 10 most common words of a list (30 times each, all others 3 times;
//                         below 4,096 tokens 6 and 1)
//   fwe                   the 3 most frequent coded words; frequencies by Zipf's law, alpha 2
// vt and cwe have one solved example first. Keys are pairs of English words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {

struct RulerTask {
  enum class Kind { needles, variables, common_words, frequent_words, questions };
  enum class Haystack { noise, essay, needles };  // noise: five short sentences, repeated
  enum class Item { words, numbers, uuids };

  std::string name;
  Kind kind = Kind::needles;
  int64_t answer_tokens = 0;  // maximum length of an answer
  Haystack haystack = Haystack::noise;
  Item keys = Item::words, values = Item::numbers;
  int64_t n_keys = 1, n_values = 1, n_queries = 1;

  /// True if answers have a depth.
  bool by_depth() const { return kind == Kind::needles; }
  /// Number of right answers of a needle task.
  int64_t n_answers() const { return n_values * n_queries; }
};

/// Those that are generated.
const std::vector<RulerTask>& ruler_tasks();
/// qa_1 and qa_2, whose documents are in files (ruler_questions.h).
const std::vector<RulerTask>& ruler_question_tasks();
/// Of both; nullptr for another name.
const RulerTask* find_ruler_task(const std::string& name);

struct RulerExample {
  std::string prompt;
  std::vector<std::string> answers;
};

/// The sentences of a text, for a haystack of Haystack::essay: they end with . ! or ? before white
/// space. Throws Error(input) for a text without any.
std::vector<std::string> sentences_of(const std::string& text);

/// An example with a haystack of `units`: lines of filler, sentences of `essay` (repeated from its
/// beginning; empty = lines of filler), different words of cwe, words of fwe. `length` selects the
/// frequencies of cwe and the vocabulary of fwe. `depths`: of each answer, the share of the
/// haystack before it, 0 to 1; needles of other keys are anywhere.
RulerExample make_ruler(const RulerTask& task,
                        int64_t units,
                        int64_t length,
                        std::span<const double> depths,
                        const std::vector<std::string>& essay,
                        const RandomKey& key);

/// The longest example whose prompt and answer have at most `length` tokens. Throws Error(usage) if
/// there is none.
RulerExample make_ruler(const RulerTask& task,
                        const text::Tokenizer& tokenizer,
                        int64_t length,
                        std::span<const double> depths,
                        const std::vector<std::string>& essay,
                        const RandomKey& key);

/// The prompts around a context.
std::string needle_prompt(const RulerTask& task,
                          const std::string& context,
                          const std::vector<std::string>& queries);
std::string variables_prompt(const std::string& context, const std::string& value, int64_t n);
std::string common_words_prompt(const std::string& context);
std::string frequent_words_prompt(const std::string& context);

}  // namespace tessera::infer
