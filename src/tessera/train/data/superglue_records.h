// Records of SuperGLUE as pairs of texts with a class (Wang et al. 2019, arXiv:1905.00537): the
// files of the benchmark, and the flat records of `datasets`. Torch-free.
//
//   copa     each choice: premise and question, choice; true = the right choice
//   multirc  each answer: paragraph, question and answer; true = a right answer
//   record   each entity of the passage: passage, the query with it; true = an answer
//   wic      "word: sentence 1", sentence 2; true = the word has the same meaning
//   wsc      the text with "* span 1 *" and "# span 2 #" (Raffel et al. 2019, arXiv:1910.10683,
//            app. B); true = they refer to the same
#pragma once

#include <functional>

#include "tessera/train/data/label_data.h"

namespace tessera::train {

/// Visits the pairs of a record, with the keys of `data` and with Record::group and
/// Record::candidate. Throws Error(file) for a key that is missing or of another type.
void superglue_records(RecordLayout layout,
                       const Record& record,
                       const LabelData& data,
                       const std::function<void(Record&&)>& visit);

}  // namespace tessera::train
