// RULER's question answering: qa_1 (SQuAD 2.0) and qa_2 (HotpotQA), a question whose documents
// stand among as many others as fit (Hsieh et al. 2024, arXiv:2404.06654). Torch-free.
//
//   "Document 1:\n...\n\nDocument 2:\n...": the documents of the question first, then those of its
//   article (SQuAD), then any other ones, in random order; with more documents than the data set
//   has, all of them are repeated
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/infer/evaluation/ruler.h"

namespace tessera::infer {

struct RulerQuestions {
  struct Question {
    std::string query;
    std::vector<std::string> answers;           // one of them is expected
    std::vector<size_t> documents, of_article;  // its own; others of its article
  };
  std::vector<std::string> documents;  // different ones, sorted
  std::vector<Question> questions;     // in the order of the file
};

/// The questions with an answer of a file: SQuAD's {"data": [{"paragraphs": ...}]}, or HotpotQA's
/// list of {question, answer, context: [[title, [sentences]], ...]}. Throws Error(file), in one
/// line, for another file; Error(input) for one without questions.
RulerQuestions read_ruler_questions(const std::string& path);

/// Question `index` among `n` documents, at least its own.
RulerExample make_ruler_question(const RulerQuestions& data,
                                 size_t index,
                                 int64_t n,
                                 const RandomKey& key);

/// With the largest number of documents whose prompt and answer have at most `length` tokens.
/// Throws Error(usage) if its own do not fit.
RulerExample make_ruler_question(const RulerQuestions& data,
                                 size_t index,
                                 const RulerTask& task,
                                 const text::Tokenizer& tokenizer,
                                 int64_t length,
                                 const RandomKey& key);

/// The prompt around the documents.
std::string question_prompt(const std::string& context, const std::string& query);

}  // namespace tessera::infer
