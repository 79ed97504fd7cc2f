// A page of the documentation from a study's report.json (report_json()): its tables as Markdown,
// its figure as SVG. Torch-free.
#pragma once

#include <string>

#include "tessera/spec/json.h"

namespace tessera::train {

/// Losses or accuracies with intervals, claims of papers against them, sizes and costs, gradient
/// norms by layer if they were measured, and how to reproduce it. Times are relative to those of
/// the reference. Throws Error(file) that begins with `where` for JSON that is no such report.
std::string study_markdown(const spec::Json& report, const std::string& where);

/// Validation loss (of a task: accuracy) of every entry, the best first: mean and range over the
/// seeds, with a further dot for every length of evaluate.lengths. Light or dark as the reader's
/// system. Throws what study_markdown() does.
std::string study_figure(const spec::Json& report, const std::string& where);

}  // namespace tessera::train
