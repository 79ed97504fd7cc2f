// Labelled data files: tables (TSV, CSV), JSON lines, texts with a separate file of labels, CoNLL,
// SQuAD, images (CIFAR, IDX, folders, lists), lists of sounds. Torch-free.
//
//   "data": {"train": ["train.tsv"], "columns": ["label", "text"], "separator": " ",
//            "max_splits": 1, "valid": ["dev.tsv"]}
//
// Each value of an example has a role (text, text_b, label, score, words, labels, context,
// question, answers), and is read from the column or key of that name, or the one in ROLE_key.
// With a spec that reads features, the text is an image or a sound: the file that `file_key` names.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/spec/fields.h"
#include "tessera/spec/json.h"
#include "tessera/train/data/feature_input.h"

namespace tessera::train {

using spec::Json;

enum class LabelFormat {
  tsv,       // cells between separators, without quotes: a quote is a character (GLUE)
  csv,       // RFC 4180: quoted cells may contain separators and line ends
  jsonl,     // an object a line, or one list of them
  lines,     // a text a line; labels are in separate files
  conll,     // a word a line, its label in the last column; an empty line ends a sentence
  squad,     // {"data": [{"paragraphs": [{"context", "qas": [...]}]}]}
  listops,   // a table of ListOps (Source, Target); a text has one character a token (listops.h)
  cifar,     // CIFAR-10, binary version: a text is the grey values of an image (image_files.h)
  idx,       // images in IDX format, their labels in separate files (MNIST)
  cifar100,  // CIFAR-100, binary version, with its fine labels
  folder,    // a folder with a folder of files for each class
};

/// Records of SuperGLUE (Wang et al. 2019, arXiv:1905.00537) that become pairs of texts with the
/// classes false and true (superglue_records.h).
enum class RecordLayout { copa, multirc, record, wic, wsc };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::LabelFormat> {
  using E = tessera::train::LabelFormat;
  static constexpr std::array names{
      std::pair{E::tsv, "tsv"},           std::pair{E::csv, "csv"},
      std::pair{E::jsonl, "jsonl"},       std::pair{E::lines, "lines"},
      std::pair{E::conll, "conll"},       std::pair{E::squad, "squad"},
      std::pair{E::listops, "listops"},   std::pair{E::cifar, "cifar"},
      std::pair{E::cifar100, "cifar100"}, std::pair{E::idx, "idx"},
      std::pair{E::folder, "folder"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::RecordLayout> {
  using E = tessera::train::RecordLayout;
  static constexpr std::array names{std::pair{E::copa, "copa"}, std::pair{E::multirc, "multirc"},
                                    std::pair{E::record, "record"}, std::pair{E::wic, "wic"},
                                    std::pair{E::wsc, "wsc"}};
};

namespace tessera::train {

/// Labelled data files and their format.
struct LabelData {
  std::vector<std::string> train = {};
  std::vector<std::string> valid = {};
  double valid_fraction = 0;
  std::vector<std::string> train_labels = {};
  std::vector<std::string> valid_labels = {};
  std::optional<LabelFormat> format = {};
  std::vector<std::string> columns = {};
  std::optional<bool> header = {};
  std::string separator = {};
  int64_t max_splits = 0;
  bool skip_incomplete = false;
  std::optional<RecordLayout> layout = {};
  std::string label_separator = ",";
  std::string text_key = "text";
  std::string text_b_key = "text_b";
  std::string label_key = "label";
  std::string score_key = "score";
  std::string words_key = "words";
  std::string labels_key = "labels";
  std::string context_key = "context";
  std::string question_key = "question";
  std::string answers_key = "answers";
  std::string file_key = "file_name";
  std::optional<infer::InputKind> input = {};
  infer::ImageSettings image = {};
  infer::AudioSettings audio = {};
  AugmentRecipe augment = {};
  std::string tokenizer = "bytes";
  /// True if the model reads images or sounds; set by the reader of a recipe.
  bool has_features = false;

  /// The format as given or by file name. Throws Error(spec) if neither determines it.
  LabelFormat format_of(const std::string& path) const;

  static constexpr auto fields() {
    using C = LabelData;
    using spec::field;
    return std::tuple{
        field("train", &C::train, "files to learn from", {.required = true}),
        field("valid", &C::valid, "files to evaluate on"),
        field("valid_fraction", &C::valid_fraction,
              "instead of valid: this share of the examples, drawn from all of them, always the "
              "same ones",
              {.min = 0, .below = 1}),
        field("train_labels", &C::train_labels,
              "files with a label for every example of train, a line each"),
        field("valid_labels", &C::valid_labels, "the same for valid"),
        field("format", &C::format, "null = by the end of the file's name"),
        field("columns", &C::columns, "tsv, csv, conll: names of the columns"),
        field("header", &C::header,
              "tsv, csv: whether the first line holds names; null = where there are no columns"),
        field("separator", &C::separator, "tsv, csv: between cells; \"\" = tab, comma"),
        field("max_splits", &C::max_splits,
              "tsv: separators of a line that count, the first ones; 0 = all", {.min = 0}),
        field(
            "skip_incomplete", &C::skip_incomplete,
            "tsv, csv: skip rows with missing cells or an empty text, as `datasets` does for GLUE"),
        field("layout", &C::layout,
              "jsonl: records of this SuperGLUE task become pairs of texts with the classes false "
              "and true"),
        field("label_separator", &C::label_separator, "tables: between several labels of a text"),
        field("text_key", &C::text_key, "column or key of the text"),
        field("text_b_key", &C::text_b_key, "of the second text of a pair"),
        field("label_key", &C::label_key, "of the class, or the list of classes"),
        field("score_key", &C::score_key, "of the number"),
        field("words_key", &C::words_key, "of the words, a list, or in a table with spaces"),
        field("labels_key", &C::labels_key, "of the labels of the words"),
        field("context_key", &C::context_key, "of the text that holds the answer"),
        field("question_key", &C::question_key, "of the question"),
        field("answers_key", &C::answers_key,
              "of the answers, each with its first character in the context"),
        field("file_key", &C::file_key,
              "tsv, csv, jsonl: of the file of an image or sound, relative to the list"),
        field("input", &C::input,
              "what a spec of patches or frames reads; null = images of patches, sounds of frames"),
        field("image", &C::image, "preprocessing of images"),
        field("audio", &C::audio, "preprocessing of sounds"),
        field("augment", &C::augment, "data augmentation of training images"),
        field("tokenizer", &C::tokenizer,
              "\"bytes\", or a tokenizer.json or vocab.txt, or its folder")};
  }
};

/// The settings for a spec's embedding, complete. Throws Error(spec) for those that do not fit.
infer::FeatureSettings feature_settings(const LabelData& data, const nn::FeatureEmbedConfig& embed);

/// Throws Error(spec) for keys that exclude each other; `where` is the path of the data.
void check_label_data(const LabelData& data, const std::string& where);

/// One example of a file as a JSON object, whatever the format.
struct Record {
  std::string where;  // "dev.tsv: line 3"
  Json values;
  /// From a table: all values are strings.
  bool is_table = false;
  size_t offset = 0;  // of a table row: byte offset in the file
  /// With a layout: the question that the pair belongs to, and its answer.
  std::string group = {}, candidate = {};
  FeatureFile file = {};  // with LabelData::has_features
};

/// Visits the examples of a file in order. Throws Error(file) naming file and line for text that is
/// not UTF-8, an empty line, too few or too many cells, and quotes that do not close.
void for_each_record(const LabelData& data,
                     const std::string& path,
                     const std::function<void(Record&&)>& visit);

/// The rows of a table (tsv, csv) with a header line.
void for_each_row(const std::string& path,
                  LabelFormat format,
                  const std::function<void(Record&&)>& visit);

/// The labels of a label file: a line each, or an IDX file. Throws Error(file).
std::vector<std::string> read_label_file(const std::string& path);

}  // namespace tessera::train
