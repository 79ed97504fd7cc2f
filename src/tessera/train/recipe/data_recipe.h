// "data" of a recipe: files of text, a synthetic task, or labelled examples. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/spec/type_union.h"
#include "tessera/train/data/label_data.h"
#include "tessera/train/recipe/counts.h"

namespace tessera::train {

using spec::Json;

enum class Filler {
  random,  // any token
  zero,
};
enum class DataFormat {
  text,   // a file is a document
  jsonl,  // a line is an object with a document
  tsv,    // a row is a document; the first line names the columns
  csv,
  tokens,  // token ids, each document after the separator of the one before
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::Filler> {
  using E = tessera::train::Filler;
  static constexpr std::array names{std::pair{E::random, "random"}, std::pair{E::zero, "zero"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::DataFormat> {
  using E = tessera::train::DataFormat;
  static constexpr std::array names{std::pair{E::text, "text"}, std::pair{E::jsonl, "jsonl"},
                                    std::pair{E::tsv, "tsv"}, std::pair{E::csv, "csv"},
                                    std::pair{E::tokens, "tokens"}};
};

namespace tessera::train {

inline constexpr const char* kFormatDoc =
    "text: a file is a document; jsonl: a line is; tsv, csv: a row is, below a line that names the "
    "columns; tokens: ids, unsigned 16-bit little-endian, or "
    "32-bit where the vocabulary has more than 65,536, documents ended by the separator";

/// Formats with keys: JSON lines and tables.
inline bool has_keys(DataFormat format) {
  return format != DataFormat::text && format != DataFormat::tokens;
}
/// The same format for labelled files; nullopt for formats without keys.
std::optional<LabelFormat> label_format(DataFormat format);

/// One text of a mixture.
struct DataPart {
  double weight = 1;
  std::vector<std::string> train = {};
  std::vector<std::string> valid = {};
  double valid_fraction = 0;
  DataFormat format = DataFormat::text;
  std::string text_key = "text";

  static constexpr auto fields() {
    using C = DataPart;
    using spec::field;
    return std::tuple{
        field("weight", &C::weight, "weight of this dataset, relative to the sum of all",
              {.min = 0}),
        field("train", &C::train, "files to learn from", {.required = true}),
        field("valid", &C::valid, "files to evaluate on"),
        field("valid_fraction", &C::valid_fraction,
              "instead of valid: the last part of the bytes of train", {.min = 0, .below = 1}),
        field("format", &C::format, kFormatDoc),
        field("text_key", &C::text_key, "key or column of the text")};
  }
};

/// Text files.
struct TextData {
  static constexpr const char* kName = "text";
  std::vector<std::string> train = {};
  std::vector<std::string> valid = {};
  double valid_fraction = 0;
  DataFormat format = DataFormat::text;
  std::string text_key = "text";
  std::optional<std::string> source_key = {};
  std::string tokenizer = "bytes";
  std::optional<std::string> document_separator = {};
  std::vector<DataPart> mix = {};
  std::optional<double> temperature = {};

  /// The data of one part of the mixture only.
  TextData only(const DataPart& part) const;

  static constexpr auto fields() {
    using C = TextData;
    using spec::field;
    return std::tuple{
        field("train", &C::train, "files to learn from; needed without a mix"),
        field("valid", &C::valid, "files to evaluate on"),
        field("valid_fraction", &C::valid_fraction,
              "instead of valid: the last part of the bytes of train", {.min = 0, .below = 1}),
        field("format", &C::format, kFormatDoc),
        field("text_key", &C::text_key, "key or column of the text"),
        field("source_key", &C::source_key,
              "key or column of the source (encoder input, or prefix of a prefix language model); "
              "the text is then the target"),
        field("tokenizer", &C::tokenizer,
              "\"bytes\", or a tokenizer.json or vocab.txt, or its folder"),
        field("document_separator", &C::document_separator,
              "token put after every document; null = the tokenizer's end of text if it has one, "
              "\"\" = none"),
        field("mix", &C::mix, "data mixture, instead of train: several datasets with weights"),
        field("temperature", &C::temperature,
              "of a mix: multiplies weights by tokens^(1 / temperature); null = weights alone",
              {.min = 1})};
  }
};

// --- synthetic tasks (tasks.h), examples of train.length tokens; kName is the type in recipes ---

/// Keys of every task.
struct TaskKeys {
  int64_t examples = 0;
  int64_t valid = 256;
  int64_t valid_length = 0;

  static constexpr auto fields() {
    using C = TaskKeys;
    using spec::field;
    return std::tuple{
        field("examples", &C::examples, "number of different training examples; 0 = unlimited",
              {.min = 0, .max = kMaxCount}),
        field("valid", &C::valid, "examples to evaluate on; 0 = none",
              {.min = 0, .max = kMaxCount}),
        field("valid_length", &C::valid_length, "tokens of those; 0 = train.length",
              {.min = 0, .max = kMaxTokens})};
  }
};

struct MqarTask : TaskKeys {
  static constexpr const char* kName = "mqar";
  int64_t items = 4;
  Filler filler = Filler::random;
  static constexpr auto fields() {
    using C = MqarTask;
    using spec::field;
    return std::tuple_cat(
        std::tuple{field("items", &C::items, "keys with values", {.min = 1}),
                   field("filler", &C::filler, "tokens between the queried keys")},
        TaskKeys::fields());
  }
};

struct CopyingTask : TaskKeys {
  static constexpr const char* kName = "copying";
  int64_t items = 4;
  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("items", &CopyingTask::items, "symbols to copy", {.min = 1})},
        TaskKeys::fields());
  }
};

struct SelectiveCopyingTask : CopyingTask {
  static constexpr const char* kName = "selective_copying";
};

struct InductionHeadsTask : TaskKeys {
  static constexpr const char* kName = "induction_heads";
};

struct NeedleTask : TaskKeys {
  static constexpr const char* kName = "needle";
  int64_t items = 4;
  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("items", &NeedleTask::items, "tokens of the value", {.min = 1})},
        TaskKeys::fields());
  }
};

struct ParityTask : TaskKeys {
  static constexpr const char* kName = "parity";
};

struct ModularSumTask : TaskKeys {
  static constexpr const char* kName = "modular_sum";
  int64_t items = 4;
  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("items", &ModularSumTask::items, "the modulus", {.min = 1})},
        TaskKeys::fields());
  }
};

struct S3Task : TaskKeys {
  static constexpr const char* kName = "s3";
};

struct S5Task : TaskKeys {
  static constexpr const char* kName = "s5";
};

/// The table of tasks.
using TaskRecipe = std::variant<MqarTask,
                                CopyingTask,
                                SelectiveCopyingTask,
                                InductionHeadsTask,
                                NeedleTask,
                                ParityTask,
                                ModularSumTask,
                                S3Task,
                                S5Task>;

const TaskKeys& keys_of_task(const TaskRecipe& task);

/// Data by "type": text or a task.
using TypedData = spec::ExtendedUnion<TextData, TaskRecipe>;

/// The data of a recipe. An objective that learns from labels reads "data" as labelled examples,
/// which have no "type".
struct DataRecipe {
  std::variant<TextData, TaskRecipe, LabelData> of = {};

  /// Null for other data.
  const TextData* text() const { return std::get_if<TextData>(&of); }
  const TaskRecipe* task() const { return std::get_if<TaskRecipe>(&of); }
  const LabelData* labels() const { return std::get_if<LabelData>(&of); }
  /// The text files; throws Error(internal) for other data.
  const TextData& files() const;
  /// True for pairs of a source and a target.
  bool has_sources() const { return text() != nullptr && text()->source_key.has_value(); }
  /// As in convert::find_tokenizer(); "bytes" for a task, which has none.
  const std::string& tokenizer() const;
  /// True if there are validation samples.
  bool has_valid() const;
};

/// Reads "data" of a recipe as text, as a task, or if `labelled` as labelled examples; paths are as
/// written. Throws Error(spec).
DataRecipe read_data(const Json& json, bool labelled);
Json dump_data(const DataRecipe& data);
/// Throws Error(spec) for keys that exclude each other.
void check_data(const DataRecipe& data);

}  // namespace tessera::train
