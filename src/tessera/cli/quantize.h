// `quantize`, most of which needs no tensors. Torch-free.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/convert/input_scaling.h"

namespace tessera::cli {

/// What measuring importance reads.
struct ImportanceArgs {
  std::string model, text;
  convert::LoadOptions loading;
  int64_t tokens = 0;  // of the text at most
};
struct MeasuredImportance {
  convert::Importance by_name;
  int64_t tokens = 0;  // read
  /// Further passes over the text: the inputs' products of tensors that are asked for in this
  /// order, at most so many bytes of them at a time.
  std::function<convert::InputProductsOf(std::vector<std::string> order, int64_t bytes)> products;
};
/// Who measures it: a run of the model, which needs tensors.
using ImportanceMeter = std::function<MeasuredImportance(const ImportanceArgs& args)>;

/// That which runs it, of the program with tensors.
ImportanceMeter importance_meter();

/// How what a text makes of the inputs of matrices decides how these are rounded (--calibrate).
struct Calibration {
  std::string method;  // "", "gptq", "awq", "awq+gptq"
  kernels::FeedbackOptions feedback;
  int64_t bytes = int64_t{2} << 30;  // of products at a time

  bool has(std::string_view name) const { return method.find(name) != std::string::npos; }
};
const std::vector<std::string>& calibration_methods();

/// Prepares the model and the options by what was measured, whose importance is left in
/// `importance`. Returns notes.
std::vector<std::string> calibrate(const Calibration& how,
                                   const MeasuredImportance& measured,
                                   convert::GgufModel& model,
                                   convert::Importance& importance,
                                   convert::QuantizeOptions& options);

std::function<int()> add_quantize(CLI::App& app, ImportanceMeter meter);

/// The option of `quantize` that needs tensors.
inline constexpr const char* kImportance = "--importance";

}  // namespace tessera::cli
