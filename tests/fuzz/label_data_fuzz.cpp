// A file of labelled examples: the first byte chooses how it is written, the rest is the file. What
// it holds is read as texts, words and questions.
#include "files.h"

#include <array>

#include "tessera/text/utf8.h"
#include "tessera/train/data/label_examples.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(label_data) {
  static const fuzz::Folder folder;
  if (input.empty()) return;
  // below 128 the formats of texts; from there on ListOps, images and records of SuperGLUE; odd
  // ones from 200 on are lists and files of images
  const int choice = std::to_integer<int>(input[0]);
  const int more = choice < 128 ? 0 : choice % 8;
  const int kind = choice < 128 ? choice % 6 : more < 3 ? 6 + more : 2;
  train::LabelData data;
  data.train = {folder.put("data", fuzz::text_of(input.subspan(1))).string()};
  data.format = static_cast<train::LabelFormat>(kind);
  if (choice >= 128 && more >= 3) data.layout = static_cast<train::RecordLayout>(more - 3);
  data.text_key = "t";
  if (choice >= 200 && choice % 2 == 1) {
    constexpr std::array kFeatures = {train::LabelFormat::csv, train::LabelFormat::jsonl,
                                      train::LabelFormat::cifar, train::LabelFormat::cifar100,
                                      train::LabelFormat::idx};
    data.format = kFeatures[static_cast<size_t>(choice / 2) % kFeatures.size()];
    data.layout.reset();
    data.has_features = true;
    fuzz::run(
        [&] {
          for (const auto& one :
               train::read_texts(data, train::LabelSplit::train, train::LabelOf::one_class)) {
            // a list names other files
            if (*data.format == train::LabelFormat::csv ||
                *data.format == train::LabelFormat::jsonl)
              continue;
            const format::Image image = one.file.image();
            fuzz::check(std::ssize(image.pixels) == image.height * image.width * image.channels,
                        "an image has all of its pixels");
          }
        },
        {ErrorKind::file, ErrorKind::input});
    return;
  }
  const bool is_image = kind > 6;
  const auto read = [&](const std::function<void()>& body) {
    fuzz::run(body, {ErrorKind::file, ErrorKind::input});
  };
  using train::LabelOf, train::LabelSplit;
  for (const LabelOf of : {LabelOf::one_class, LabelOf::multi_label, LabelOf::score})
    read([&] {
      const auto texts = train::read_texts(data, LabelSplit::train, of);
      std::vector<std::string> labels;
      for (const auto& one : texts) {
        fuzz::check((is_image || text::is_valid_utf8(one.text)) && !one.text.empty(),
                    "a text is one");
        labels.insert(labels.end(), one.labels.begin(), one.labels.end());
      }
      if (labels.empty()) return;
      const auto names = train::ClassNames::of(labels);
      for (const std::string& label : labels)
        fuzz::check(names.names().at(static_cast<size_t>(names.number(label, "fuzz"))) == label,
                    "a class has its own number");
    });
  read([&] {
    for (const auto& one : train::read_words(data, LabelSplit::train))
      fuzz::check(one.words.size() == one.labels.size(), "a label for every word");
  });
  read([&] {
    for (const auto& one : train::read_questions(data, LabelSplit::train))
      for (const auto& answer : one.answers)
        fuzz::check(one.context.compare(answer.begin, answer.text.size(), answer.text) == 0,
                    "an answer stands in its context");
  });
  read([&] { train::read_label_file(data.train[0]); });
}
