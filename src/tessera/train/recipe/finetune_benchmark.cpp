// Fine-tuning plans for the files of named benchmarks.
#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/nn/head/classifier.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/recipe/finetune_planner.h"

namespace tessera::train {
namespace {

/// Sets the class names of the classifier of a resolved spec.
void name_classes(Json& spec, const std::vector<std::string>& names) {
  const auto set = [&](Json& head) {
    if (head.is_object() && head.value("type", Json()) == Json("classifier"))
      head["labels"] = names;
  };
  if (spec.contains("heads"))
    for (Json& head : spec["heads"]) set(head);
  else if (spec.contains("head"))
    set(spec["head"]);
}

}  // namespace

void Planner::set_benchmark() {
  out_.benchmark = benchmark_->name;
  out_.scores = benchmark_->scores;
  say("benchmark: {} ({})", benchmark_->name, benchmark_->metric);
  if (benchmark_->format) {
    if (!o_.format.empty() && o_.format != spec::enum_name(*benchmark_->format))
      fail(ErrorKind::usage, verb(), "--format {} with --task {}; expected {}", o_.format,
           benchmark_->name, spec::enum_name(*benchmark_->format));
    data_["format"] = spec::enum_name(*benchmark_->format);
    return;
  }
  const std::string& path = o_.data.front();
  LabelData named;
  if (!o_.format.empty())
    spec::detail::read_value(Json(o_.format), named.format, {}, spec::Scope().at("--format"));
  const LabelFormat format = named.format_of(path);
  const bool table = format == LabelFormat::tsv || format == LabelFormat::csv;
  if (table && benchmark_->layout)
    fail(ErrorKind::usage, verb(), "{}: a table; expected the JSON lines of {}", path,
         benchmark_->name);
  // as `datasets` does for GLUE
  if (table && benchmark_->name.find("glue:") != std::string::npos) {
    data_["skip_incomplete"] = true;
    say("rows with missing cells or an empty text are left out (data.skip_incomplete)");
  }
  if (benchmark_->layout) data_["layout"] = spec::enum_name(*benchmark_->layout);
  if (format != LabelFormat::tsv || benchmark_->columns.empty() || !o_.columns.empty()) return;
  // an export of `datasets` has a line of names
  std::string_view first;
  DataLines lines(path);
  if (lines.next(first) && first.find(benchmark_->text.front()) == first.npos)
    data_["columns"] = benchmark_->columns;
}

std::vector<std::string> Planner::classes_of_benchmark() {
  const auto* head = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get());
  if (o_.measured == nullptr) {
    // a head with these names keeps its order
    const bool same =
        head != nullptr && benchmark_classes(*benchmark_, head->labels) == head->labels;
    const std::vector<std::string>& own = same ? head->labels : benchmark_->classes;
    say("{} classes: {} (objective.labels)", own.size(), fmt::join(own, ", "));
    return own;
  }
  const std::vector<std::string> found = classes_of_head(),
                                 names = benchmark_classes(*benchmark_, found);
  if (names.empty())
    fail(ErrorKind::usage, verb(), "{} has the classes {}; {} has {}; expected a model of {}",
         o_.model, fmt::join(found, ", "), benchmark_->name, fmt::join(benchmark_->classes, ", "),
         benchmark_->name);
  if (names != found)
    say("classes of the head: {} = {}", fmt::join(found, ", "), fmt::join(names, ", "));
  name_classes(recipe_["spec"], names);
  return names;
}

}  // namespace tessera::train
