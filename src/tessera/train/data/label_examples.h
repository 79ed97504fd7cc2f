// Labelled examples from files (label_data.h), checked: texts with classes or a score, words with
// labels, questions with answers. Torch-free.
#pragma once

#include "tessera/train/data/label_data.h"

namespace tessera::train {

/// A text or a pair of texts with its labels.
struct LabelledText {
  std::string where, text, text_b;
  std::vector<std::string> labels;  // class names; empty if `score` is used
  double score = 0;
  std::string group, candidate;  // of a Record with a layout
  FeatureFile file = {};         // in place of a text
};

/// A sentence with one label per word.
struct LabelledWords {
  std::string where;
  std::vector<std::string> words, labels;
};

/// A span of the context, from byte `begin` on.
struct Answer {
  std::string text;
  size_t begin = 0;
};

/// A question about a context; without answers = it has none.
struct Question {
  std::string where, id, context, question;
  std::vector<Answer> answers;
};

/// Kinds of text labels.
enum class LabelOf {
  one_class,
  multi_label,  // any number, or none
  score,
};

/// Training or validation files of a data.
enum class LabelSplit { train, valid };

/// The examples of a split. Throws Error(file) as for_each_record(), and for values that are
/// missing, empty or of another type; Error(input) for files without examples and label files of
/// another length. With valid_fraction, `train` has all of them.
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

/// Which of `n` examples are held out for a valid_fraction above 0: at least one, and not all.
/// Depends on n and the fraction only. Throws Error(input) if n is below 2.
std::vector<bool> held_out(int64_t n, double valid_fraction);

/// Class names and numbers.
class ClassNames {
 public:
  ClassNames() = default;
  /// Throws Error(spec) for an empty or repeated name.
  explicit ClassNames(std::vector<std::string> names);
  /// The classes of these labels: in numeric order if all are integers, else by name.
  static ClassNames of(const std::vector<std::string>& labels);

  const std::vector<std::string>& names() const { return names_; }
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  /// The number of a class by its name, or by its number if no name is a number. Throws
  /// Error(input) with the known names.
  int64_t number(const std::string& label, const std::string& where) const;

 private:
  std::vector<std::string> names_;
  bool has_numbers_ = false;  // a name is an integer
};

}  // namespace tessera::train
