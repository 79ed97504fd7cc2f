#include "tessera/train/recipe/data_recipe.h"

#include <algorithm>

#include "tessera/train/data/check_files.h"

namespace tessera::train {
namespace {

/// A resolved recipe contains defaults next to a mixture; only given keys count.
Json without_defaults(Json data) {
  const Json defaults = spec::dump_struct(TextData());
  for (const auto& [key, value] : defaults.items())
    if (data.contains(key) && data[key] == value) data.erase(key);
  return data;
}

void check_mix(const TextData& data, const Json& json) {
  for (const char* key : {"train", "valid", "valid_fraction", "format", "text_key", "source_key"})
    if (json.contains(key))
      fail(ErrorKind::spec, fmt::format("data.{}", key),
           "given with data.mix, whose parts have their own; expected one of the two");
  for (size_t i = 0; i < data.mix.size(); ++i) {
    check_files(data.mix[i], fmt::format("data.mix[{}]", i));
    if (!(data.mix[i].weight > 0))
      fail(ErrorKind::spec, fmt::format("data.mix[{}].weight", i),
           "found 0; expected more, or the part left out");
  }
}

void check_text(const TextData& data) {
  if (!data.mix.empty()) return;
  if (data.temperature)
    fail(ErrorKind::spec, "data.temperature", "has no meaning without data.mix");
  check_files(data, "data");
  if (data.source_key && !has_keys(data.format))
    fail(ErrorKind::spec, "data.source_key",
         "given for format \"{}\"; expected format \"jsonl\", \"csv\" or \"tsv\"",
         spec::enum_name(data.format));
}

}  // namespace

std::optional<LabelFormat> label_format(DataFormat format) {
  switch (format) {
    case DataFormat::jsonl:
      return LabelFormat::jsonl;
    case DataFormat::tsv:
      return LabelFormat::tsv;
    case DataFormat::csv:
      return LabelFormat::csv;
    case DataFormat::text:
    case DataFormat::tokens:
      break;
  }
  return std::nullopt;
}

TextData TextData::only(const DataPart& part) const {
  TextData out = *this;
  out.mix.clear();
  out.temperature.reset();
  out.train = part.train;
  out.valid = part.valid;
  out.valid_fraction = part.valid_fraction;
  out.format = part.format;
  out.text_key = part.text_key;
  return out;
}

const TaskKeys& keys_of_task(const TaskRecipe& task) {
  return std::visit([](const auto& one) -> const TaskKeys& { return one; }, task);
}

const TextData& DataRecipe::files() const {
  require(text() != nullptr, "recipe", "the data are no text files");
  return *text();
}

const std::string& DataRecipe::tokenizer() const {
  static const std::string none = "bytes";
  if (text() != nullptr) return text()->tokenizer;
  return labels() != nullptr ? labels()->tokenizer : none;
}

bool DataRecipe::has_valid() const {
  const auto held_out = [](const auto& data) {
    return !data.valid.empty() || data.valid_fraction > 0;
  };
  if (task() != nullptr) return keys_of_task(*task()).valid > 0;
  if (labels() != nullptr) return held_out(*labels());
  return held_out(files()) || std::any_of(files().mix.begin(), files().mix.end(), held_out);
}

DataRecipe read_data(const Json& json, bool labelled) {
  const spec::Scope scope = spec::Scope().at("data");
  if (labelled) return {spec::read_struct<LabelData>(json, scope)};
  DataRecipe out;
  std::visit(
      [&]<class C>(C data) {
        if constexpr (std::is_same_v<C, TextData>)
          out.of = std::move(data);
        else
          out.of = TaskRecipe(std::move(data));
      },
      spec::read_union<TypedData>(json, scope));
  if (out.text() != nullptr && !out.text()->mix.empty())
    check_mix(*out.text(), without_defaults(json));
  return out;
}

Json dump_data(const DataRecipe& data) {
  if (data.task() != nullptr) return spec::dump_union(*data.task());
  if (data.labels() != nullptr) return spec::dump_struct(*data.labels());
  Json json = spec::dump_union(TypedData(data.files()));
  if (data.files().mix.empty())
    for (const char* key : {"mix", "temperature"}) json.erase(key);
  return json;
}

void check_data(const DataRecipe& data) {
  if (data.labels() != nullptr) check_label_data(*data.labels(), "data");
  if (data.text() != nullptr) check_text(*data.text());
}

}  // namespace tessera::train
