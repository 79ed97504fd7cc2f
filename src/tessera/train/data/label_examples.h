// What a model learns from labels: texts with classes or a score, words with labels, questions with
// answers, read out of files (label_data.h) and checked. Torch-free.
#pragma once

#include "tessera/train/data/label_data.h"

namespace tessera::train {

/// A text, or a pair of texts, and what is said of it.
struct LabelledText {
  std::string where, text, text_b;
  std::vector<std::string> labels;  // classes as they are written, none where `score` counts
  double score = 0;
};

/// A sentence whose words have a label each.
struct LabelledWords {
  std::string where;
  std::vector<std::string> words, labels;
};

/// An answer is a part of the context: bytes from `begin`.
struct Answer {
  std::string text;
  size_t begin = 0;
};

/// A question about a text; no answers = the text holds none.
struct Question {
  std::string where, id, context, question;
  std::vector<Answer> answers;
};

/// What labels of texts are.
enum class LabelOf {
  one_class,
  multi_label,  // any number of them, none too
  score,
};

/// Which files of a data: those to learn from, or those to evaluate on.
enum class LabelSplit { train, valid };

/// The examples of a split. Throws Error(file) as for_each_record() does, and for what is missing,
/// empty or of another kind; Error(input) for files without examples and label files of another
/// length. Where valid_fraction is set, `train` has all of them.
std::vector<LabelledText> read_texts(const LabelData& data,
                                     LabelSplit split,
                                     LabelOf kind,
                                     const CancelToken* cancel = nullptr);
std::vector<LabelledWords> read_words(const LabelData& data,
                                      LabelSplit split,
                                      const CancelToken* cancel = nullptr);
std::vector<Question> read_questions(const LabelData& data,
                                     LabelSplit split,
                                     const CancelToken* cancel = nullptr);

/// Which of `n` examples a valid_fraction holds out: at least one where it is above 0, and not all.
/// They follow from n and the fraction alone. Throws Error(input) where n is below 2.
std::vector<bool> held_out(int64_t n, double valid_fraction);

/// Classes by number and name.
class ClassNames {
 public:
  ClassNames() = default;
  /// Throws Error(spec) on a name that stands there twice, or none.
  explicit ClassNames(std::vector<std::string> names);
  /// Those that the labels name: in the order of their numbers where all are whole numbers, else by
  /// name.
  static ClassNames of(const std::vector<std::string>& labels);

  const std::vector<std::string>& names() const { return names_; }
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  /// The number of a class, by its name, or by its number where no name is one. Throws Error(input)
  /// with the known ones.
  int64_t number(const std::string& label, const std::string& where) const;

 private:
  std::vector<std::string> names_;
  bool has_numbers_ = false;  // a name is a whole number
};

}  // namespace tessera::train
